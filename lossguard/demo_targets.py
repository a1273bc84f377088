"""The models of the demo, each with a stock system, candidates, and the verdict that every candidate must get."""

from __future__ import annotations

import tomllib
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path

from lossguard.config import Config, PromptsConfig, SystemConfig, config_from_mapping
from lossguard.errors import UsageError, near_miss
from lossguard.plan import Budget
from lossguard.records import Claim, Verdict

CHECKOUT = Path(__file__).resolve().parent.parent
"""Where this package lies: in a checkout the folder of ``fixtures``, installed from a wheel one without it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Expectation:
    """The verdict that a candidate must get, the check that must fail, and checks that must pass all the same."""

    candidate: str
    verdict: Verdict
    failing_check: str | None = None
    passing_check: str | None = None

    def is_met_by(self, claim: Claim) -> bool:
        """Whether the claim has this verdict, by this check."""
        verdicts = {check.check: check.verdict for check in claim.evidence.checks}
        return (
            claim.verdict is self.verdict
            and (self.failing_check is None or verdicts.get(self.failing_check) is Verdict.FAIL)
            and (self.passing_check is None or verdicts.get(self.passing_check) is Verdict.PASS)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoTarget:
    """A model with the systems that are judged on it."""

    name: str
    configuration: str
    """Name of the file beside this module."""
    needs: tuple[str, ...]
    """Folders of the checkout, without which there is nothing to judge."""
    budget: Budget
    expected: tuple[Expectation, ...]
    leaves_a_core: bool = False
    """Its systems take one thread each, so that test replies are served ahead where there are two cores."""

    def config(self, seed: int) -> Config:
        """The built-in configuration, with prompts and the places of faults redrawn by ``seed``.

        Raises UsageError LG0407 if a folder that it names is not here.
        """
        for folder in self.needs:
            if not (CHECKOUT / folder).is_dir():
                raise _missing(self, CHECKOUT / folder)
        text = resources.files("lossguard").joinpath(self.configuration).read_text(encoding="utf-8")
        data = tomllib.loads(text.replace("{checkout}", CHECKOUT.as_posix()))
        config = config_from_mapping(data, folder=CHECKOUT, source=self.configuration)
        return replace(
            config,
            systems={name: _redrawn(system, seed) for name, system in config.systems.items()},
            prompts=PromptsConfig(sets=config.prompts.sets, seed=seed),
            seed=seed,
        )


def demo_target(name: str) -> DemoTarget:
    """The target of that name. Raises UsageError LG0408."""
    known = {target.name: target for target in (HYBRID, SMOLLM2)}
    if name not in known:
        raise UsageError(
            f"the demo has no target {name!r}. {near_miss(name, known)}",
            why="verdicts are known for the systems of the demo's own targets only",
            fix="give --target one of the known names; lossguard check judges systems of your own",
            code="LG0408",
        )
    return known[name]


def _expected(speculation: str) -> tuple[Expectation, ...]:
    """The same list for every target; ``speculation`` is its lossless candidate that verifies drafts."""
    return (
        Expectation(candidate="other-batches", verdict=Verdict.PASS),
        Expectation(candidate="biased-ids", verdict=Verdict.FAIL, failing_check="rate"),
        Expectation(candidate="wrong-token", verdict=Verdict.FAIL, failing_check="event", passing_check="rate"),
        Expectation(candidate="early-stop", verdict=Verdict.FAIL, failing_check="event"),
        Expectation(candidate="cut-replies", verdict=Verdict.FAIL, failing_check="structure"),
        Expectation(candidate="swapped-ties", verdict=Verdict.FAIL, failing_check="near-tie"),
        Expectation(candidate=speculation, verdict=Verdict.PASS),
    )


HYBRID = DemoTarget(
    name="hybrid",
    configuration="demo.toml",
    needs=("fixtures/hybrid-target", "fixtures/hybrid-dflash2"),
    budget=Budget(name="demo", num_requests=256, max_tokens=96, num_calibration=160),
    expected=_expected("embedded-stock"),
    leaves_a_core=True,
)
SMOLLM2 = DemoTarget(
    name="smollm2",
    configuration="demo_smollm2.toml",
    needs=(),
    budget=Budget(name="demo", num_requests=240, max_tokens=64, num_calibration=80),
    expected=_expected("prompt-lookup"),
)
DEFAULT_TARGET = HYBRID.name


def _redrawn(system: SystemConfig, seed: int) -> SystemConfig:
    """The same system with its faults' places drawn by ``seed``; faults that have no seed strike everywhere."""
    options = dict(system.options)
    for key in ("logits_processors", "post_processors"):
        if key in options:
            options[key] = [{**table, "seed": seed} if "every" in table else table for table in options[key]]
    return replace(system, options=options)


def _missing(target: DemoTarget, folder: Path) -> UsageError:
    return UsageError(
        f"the demo's target {target.name!r} needs the folder {folder}, which is not here",
        why="its weights are files of the repository; a wheel ships code only, and nothing is downloaded at run time",
        fix=f"run make demo in a checkout, or judge the built-in model: lossguard demo --target {SMOLLM2.name}",
        code="LG0407",
    )
