"""What is to be shown about speed, and how it is measured: the part of a plan that users write as ``Timing(...)``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Literal

from lossguard.errors import UsageError, near_miss

MARGIN = 0.01
MARGIN_MAX = 0.5  # beyond it, "not slower" says nothing
DEFAULT_PAIRS = 8
Rule = Literal["faster", "not-slower"]
CHOICES = {
    "estimand": ("population", "suite", "throughput"),
    "metric": ("latency", "ttft", "inter_token"),
    "order": ("abba", "random"),
    "relaunch": ("process", "reset"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Timing:
    """One speed claim. Without ``faster_than`` and ``not_slower`` it asks for any gain over 1 % + 2 x noise.

    ``faster_than`` is a factor (1.01: 1 % faster), ``not_slower`` a margin (0.01: at most 1 % slower). ``devices`` are
    names such as ``cuda:0`` or ``cpu:0-3``: two are swapped, on one the systems take turns (the weaker design).
    ``relaunch = "reset"`` keeps processes alive and needs engines with a ``reset()`` that proves itself.
    ``sequential`` looks after every pair and stops early where the boundary allows; ``max_foreign_load`` is the share
    of a core that other processes may take before a run counts as shared (1.0: not judged, and runs too short to see
    it count). ``max_stolen`` is what the hypervisor may take. ``arrivals_per_second`` sends requests by a fixed trace
    instead of one after the other, and
    ``target_latency_seconds`` is what a reply must meet there to count as good. ``noise_root`` holds recorded noise
    profiles; without one, ``noise_pairs`` A/A pairs are measured first. Raises UsageError LG1003.
    """

    faster_than: float | None = None
    not_slower: float | None = None
    pairs: int = DEFAULT_PAIRS
    requests: int = 32
    tokens: int = 64
    warm_up: int = 2
    devices: tuple[str, ...] = ()
    estimand: Literal["population", "suite", "throughput"] = "population"
    metric: Literal["latency", "ttft", "inter_token"] = "latency"
    order: Literal["abba", "random"] = "abba"
    relaunch: Literal["process", "reset"] = "process"
    sequential: bool = True
    noise_pairs: int = 8
    concurrency: int = 1
    nonce_tokens: int = 8
    arrivals_per_second: float | None = None
    target_latency_seconds: float | None = None
    max_foreign_load: float = 0.2
    max_stolen: float = 0.02
    launch_seconds: float = 900.0
    request_seconds: float = 600.0
    wait_seconds: float = 3_600.0
    noise_root: Path = Path(".lossguard-baselines")

    def __post_init__(self) -> None:
        self._require_finite()
        if self.faster_than is not None and self.not_slower is not None:
            raise bad_timing("both faster_than and not_slower are given", "one claim shows one thing: make two claims")
        if self.faster_than is not None and not 1.0 <= self.faster_than < 1_000:
            raise bad_timing(f"faster_than is {self.faster_than}", "give a factor from 1: 1.2 is 20 % faster")
        if self.not_slower is not None and not 0.0 <= self.not_slower <= MARGIN_MAX:
            raise bad_timing(
                f"not_slower is {self.not_slower}", f"give a margin up to {MARGIN_MAX}: 0.01 is at most 1 % slower"
            )
        self._require_sizes()
        for key in CHOICES:
            if getattr(self, key) not in CHOICES[key]:
                raise bad_timing(f"{key} is {getattr(self, key)!r}", f"choose among {', '.join(CHOICES[key])}")

    def _require_finite(self) -> None:
        for item in fields(self):
            value = getattr(self, item.name)
            if isinstance(value, float) and not math.isfinite(value):  # compares as neither too large nor too small
                raise bad_timing(f"{item.name} is {value}", "give a finite number")

    def _require_sizes(self) -> None:
        least = {"pairs": 1, "requests": 1, "tokens": 1, "warm_up": 1, "noise_pairs": 1, "concurrency": 1}
        for name, smallest in {**least, "nonce_tokens": 0}.items():
            if getattr(self, name) < smallest:
                raise bad_timing(f"{name} is {getattr(self, name)}", f"{smallest} is the least")
        for name in ("launch_seconds", "request_seconds"):
            if getattr(self, name) <= 0:
                raise bad_timing(f"{name} is {getattr(self, name)}", "give a time above 0")
        if self.arrivals_per_second is not None and self.arrivals_per_second <= 0:
            raise bad_timing(f"arrivals_per_second is {self.arrivals_per_second}", "give a rate above 0")

    @property
    def rule(self) -> Rule:
        """Which rule judges."""
        return "faster" if self.not_slower is None else "not-slower"

    @property
    def asked_gain(self) -> float:
        """As a fraction; 0 where any gain will do."""
        return 0.0 if self.faster_than is None else self.faster_than - 1.0

    @property
    def margin(self) -> float:
        """Of non-inferiority, as a fraction."""
        return MARGIN if self.not_slower is None else self.not_slower


def make_timing(values: Mapping[str, Any]) -> Timing:
    """From plain values, as a configuration or a fixture gives them. Raises UsageError LG1003."""
    known = {item.name: item for item in fields(Timing)}
    for name, value in values.items():
        if name not in known:
            raise bad_timing(f"timing has no option {name!r}. {near_miss(name, known)}", "correct the name")
        if not _fits(value, str(known[name].type)):
            raise bad_timing(f"timing: {name} is {value!r}", f"give a value of the kind {known[name].type}")
    given = dict(values)
    if "devices" in given:
        given["devices"] = tuple(given["devices"])
    if "noise_root" in given:
        given["noise_root"] = Path(given["noise_root"])
    return Timing(**given)


def _fits(value: Any, kind: str) -> bool:
    """Whether a plain value is of the annotated kind: texts for choices and paths, lists of texts for devices."""
    if isinstance(value, bool):
        return kind == "bool"
    if kind.startswith("tuple"):
        return isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
    if kind.startswith(("Literal", "Path")):
        return isinstance(value, (str, Path))
    if kind.startswith("float"):
        return isinstance(value, (int, float)) or (value is None and "None" in kind)
    return kind == "int" and isinstance(value, int)


def bad_timing(found: str, fix: str) -> UsageError:
    """UsageError LG1003."""
    return UsageError(
        found,
        why="the plan of a campaign is fixed before anything is measured, so that no result can change it",
        fix=fix,
        code="LG1003",
    )
