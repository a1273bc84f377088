"""The demo: the whole instrument on a real model, with candidates whose right verdict is known.

Covered: two lossless candidates must PASS, five lossy ones must FAIL at least by the check that is named.
Not covered: this is an exhibit, not the instrument's error rates.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

from lossguard.config import Config, PromptsConfig, SystemConfig, config_from_mapping
from lossguard.gate import run_gate
from lossguard.gate_result import EXIT_FAIL, EXIT_PASS, GateResult
from lossguard.listener import Listener
from lossguard.plan import DEFAULT_SEED, Budget, Plan
from lossguard.records import Claim, Verdict

DEMO_BUDGET = Budget(name="demo", num_requests=240, max_tokens=64, num_calibration=80)


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


EXPECTED = (
    Expectation(candidate="other-batches", verdict=Verdict.PASS),
    Expectation(candidate="biased-ids", verdict=Verdict.FAIL, failing_check="rate"),
    Expectation(candidate="wrong-token", verdict=Verdict.FAIL, failing_check="event", passing_check="rate"),
    Expectation(candidate="early-stop", verdict=Verdict.FAIL, failing_check="event"),
    Expectation(candidate="cut-replies", verdict=Verdict.FAIL, failing_check="structure"),
    Expectation(candidate="swapped-ties", verdict=Verdict.FAIL, failing_check="near-tie"),
    Expectation(candidate="prompt-lookup", verdict=Verdict.PASS),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The gate's result beside what it had to be."""

    gate: GateResult
    expected: tuple[Expectation, ...]

    @property
    def exit_code(self) -> int:
        """0 only if every candidate got the verdict, by the named check, that it must get."""
        return EXIT_PASS if all(self.is_met(expectation) for expectation in self.expected) else EXIT_FAIL

    def is_met(self, expectation: Expectation) -> bool:
        """Whether a candidate got what it must get."""
        return expectation.is_met_by(self.gate.claim(f"{expectation.candidate}/lossless"))

    def rows(self) -> list[list[str]]:
        """Candidate, what it must get, what it got, right or wrong."""
        table = [["candidate", "must be", "is", ""]]
        for expected in self.expected:
            claim = self.gate.claim(f"{expected.candidate}/lossless")
            failed = [check.check for check in claim.evidence.checks if check.verdict is Verdict.FAIL]
            table.append(
                [
                    expected.candidate,
                    expected.verdict.value + (f" by {expected.failing_check}" if expected.failing_check else ""),
                    claim.verdict.value + (f" by {', '.join(failed)}" if failed else ""),
                    "right" if self.is_met(expected) else "WRONG",
                ]
            )
        return table

    def to_json(self) -> dict[str, Any]:
        """The report with the demo's own outcome beside it (readers of schema 1 ignore unknown fields)."""
        return {
            **self.gate.report,
            "demo": [
                {
                    "candidate": expected.candidate,
                    "expected_verdict": expected.verdict.value,
                    "expected_failing_check": expected.failing_check,
                    "expected_passing_check": expected.passing_check,
                    "is_met": self.is_met(expected),
                }
                for expected in self.expected
            ],
        }


def demo_config(seed: int) -> Config:
    """The built-in configuration, with prompts redrawn by ``seed``."""
    text = resources.files("lossguard").joinpath("demo.toml").read_text(encoding="utf-8")
    config = config_from_mapping(tomllib.loads(text), source="demo.toml")
    return replace(
        config,
        systems={name: _redrawn(system, seed) for name, system in config.systems.items()},
        prompts=PromptsConfig(sets=config.prompts.sets, seed=seed),
        seed=seed,
    )


def _redrawn(system: SystemConfig, seed: int) -> SystemConfig:
    """The same system with its faults' places drawn by ``seed``; faults that have no seed strike everywhere."""
    options = dict(system.options)
    for key in ("logits_processors", "post_processors"):
        if key in options:
            options[key] = [{**table, "seed": seed} if "every" in table else table for table in options[key]]
    return replace(system, options=options)


def _options(system: SystemConfig, override: Mapping[str, Any]) -> dict[str, Any]:
    """The system's options, changed. Packed weights are an option of CPUs with bfloat16 products only."""
    options = {**system.options, **override}
    if options.get("packed_weights") and (override.get("device", "cpu") != "cpu" or not can_pack_weights()):
        del options["packed_weights"]
    return options


def can_pack_weights() -> bool:
    """Whether this CPU multiplies bfloat16 weights that oneDNN has laid out."""
    import torch

    is_available: bool = torch.backends.mkldnn.is_available()
    return is_available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())


def run_demo(
    *,
    seed: int = DEFAULT_SEED,
    folder: Path = Path(".lossguard"),
    resume: Path | None = None,
    listener: Listener | None = None,
    command: Sequence[str] = (),
    overrides: Mapping[str, Mapping[str, Any]] | None = None,
) -> DemoResult:
    """Judge the demo's candidates. ``overrides`` changes options by system (a device, say)."""
    config = demo_config(seed)
    systems = {
        name: replace(system, options=_options(system, (overrides or {}).get(name, {})))
        for name, system in config.systems.items()
    }
    plan = Plan(
        replace(config, systems=systems),
        candidates=[expected.candidate for expected in EXPECTED],
        budget=DEMO_BUDGET,
        folder=folder,
        resume=resume,
    )
    return DemoResult(gate=run_gate(plan, listener=listener, command=command), expected=EXPECTED)
