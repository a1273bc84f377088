"""What is to be judged: a plan. Every front makes one and hands it to ``run_gate``."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from lossguard.config import SYSTEM_NAME, Config, SystemConfig
from lossguard.errors import UsageError, near_miss
from lossguard.timing_plan import Timing

if TYPE_CHECKING:
    from lossguard.engines.base import Engine, EngineSpec


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Sizes of a run: test requests, tokens per reply, calibration prompts."""

    name: str
    num_requests: int
    max_tokens: int
    num_calibration: int = 80


DEFAULT_SEED = 17

BUDGETS = {
    "quick": Budget(name="quick", num_requests=200, max_tokens=64),
    "standard": Budget(name="standard", num_requests=240, max_tokens=256),
    "full": Budget(name="full", num_requests=1_000, max_tokens=512),
}
CUSTOM_CALIBRATION = 60
BUDGET_FORM = "REQUESTSxTOKENS[xCALIBRATION]"
_CUSTOM_BUDGET = re.compile(r"(\d{1,7})x(\d{1,7})(?:x(\d{1,7}))?")


def parse_budget(text: str) -> Budget:
    """The budget of a name (``quick``, ``standard``, ``full``), or of REQUESTSxTOKENS[xCALIBRATION] (``210x24``).

    Calibration prompts are 60 if not given. Raises UsageError LG0604 for anything else, and for a size of 0.
    """
    if text in BUDGETS:
        return BUDGETS[text]
    found = _CUSTOM_BUDGET.fullmatch(text)
    sizes = [int(size) for size in found.groups(default=str(CUSTOM_CALIBRATION))] if found else [0]
    if not all(sizes):
        raise _bad_plan(f"no budget is called {text!r}, nor is it {BUDGET_FORM}. {near_miss(text, BUDGETS)}")
    return Budget(name=text, num_requests=sizes[0], max_tokens=sizes[1], num_calibration=sizes[2])


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemHandle:
    """A system that exists only in this process, for instance one made by ``systems.from_callable``."""

    config: SystemConfig
    create: Callable[[EngineSpec], Engine] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Plan:
    """One stock run against any number of candidates.

    ``budget`` is a name (``quick``, ``standard``, ``full``), REQUESTSxTOKENS (``210x24``) or a ``Budget``.
    ``temperature`` above 0 asks for sampled replies (None: the configuration's). ``strict`` fails any token that
    differs from stock's: for deterministic stacks (batch-invariant kernels, or float32) only. ``folder`` is the root
    under which run folders are made; ``resume`` continues one. ``record`` is a recorded baseline that stands in for a
    live run of stock. Candidates may be left out only to record a baseline. ``timing`` adds a claim NAME/speed per
    candidate. ``serve_ahead`` serves test replies in a second process while this one scores and judges, where engines
    can be moved (docs/engines.md): it needs a core and the memory of a model more, and changes no verdict.
    Raises UsageError LG0604 for an unknown budget, candidates that are no list, or a name used twice.
    """

    config: Config
    baseline: str | SystemHandle = "stock"
    candidates: Sequence[str | SystemHandle] = ()
    budget: str | Budget = "standard"
    seed: int | None = None
    temperature: float | None = None
    repeats: int = 1
    strict: bool = False
    prompt_sets: Sequence[str] | None = None
    folder: Path = Path(".lossguard")
    resume: Path | None = None
    record: Path | None = None
    timing: Timing | None = None
    serve_ahead: bool = False

    def __post_init__(self) -> None:
        if isinstance(self.budget, str):
            parse_budget(self.budget)
        if isinstance(self.candidates, str):
            raise _bad_plan("candidates must be a list of systems, not one string")
        names = [system.name for system in (self.stock, *self.systems)]
        for name in names:
            if names.count(name) > 1:
                raise _bad_plan(f"the system {name!r} is named twice; a system is never judged against itself by name")
            if not SYSTEM_NAME.fullmatch(name):
                raise _bad_plan(f"the system name {name!r} cannot be a folder; use letters, digits, '.', '_', '-'")
        sizes = self.sizes
        if min(sizes.num_requests, sizes.max_tokens, sizes.num_calibration) < 1:
            raise _bad_plan(f"the budget has a size under 1: {sizes}")
        if self.repeats < 1:
            raise _bad_plan(f"repeats is {self.repeats}; at least 1 is needed")
        if not 0.0 <= self.effective_temperature <= 10.0:
            raise _bad_plan(f"temperature is {self.effective_temperature}; between 0 and 10 is possible")
        if self.strict and self.effective_temperature:
            raise _bad_plan("strict compares greedy replies, and the temperature is over 0; leave one of the two out")

    @property
    def sizes(self) -> Budget:
        """The budget as sizes."""
        return parse_budget(self.budget) if isinstance(self.budget, str) else self.budget

    @property
    def effective_seed(self) -> int:
        """The plan's seed, else the configuration's."""
        return self.config.seed if self.seed is None else self.seed

    @property
    def effective_temperature(self) -> float:
        """The plan's temperature, else the configuration's; 0 is greedy decoding."""
        return float(self.config.temperature if self.temperature is None else self.temperature)

    @property
    def stock(self) -> SystemConfig:
        """The baseline's configuration."""
        return self._configured(self.baseline)

    @property
    def systems(self) -> tuple[SystemConfig, ...]:
        """The candidates' configurations."""
        return tuple(self._configured(candidate) for candidate in self.candidates)

    def handle(self, name: str) -> SystemHandle | None:
        """The in-process system of that name, if the plan holds one."""
        for system in (self.baseline, *self.candidates):
            if isinstance(system, SystemHandle) and system.config.name == name:
                return system
        return None

    def require_candidates(self) -> None:
        """Raise UsageError LG0604 if there is nothing to judge."""
        if not self.candidates:
            raise _bad_plan("the plan has no candidate: there is nothing to judge")

    def _configured(self, system: str | SystemHandle) -> SystemConfig:
        return system.config if isinstance(system, SystemHandle) else self.config.system(system)


def _bad_plan(found: str) -> UsageError:
    return UsageError(
        found,
        why="the plan decides what a verdict speaks about, so it is checked before anything runs",
        fix="correct the plan (or the command line) and run again",
        code="LG0604",
    )
