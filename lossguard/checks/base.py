"""What a check gets and what it gives. Checks are pure: arrays and records in, a CheckResult out."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from lossguard.records import AuditedEvent, CheckResult, ForcedScores, Request, ServedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Thresholds:
    """Limits learned from stock alone on the calibration prompts, frozen before any candidate is scored."""

    logit_dtype: str  # dtype of stock's served logits: bfloat16, float16 or float32
    q_nats: float  # noise scale of the gap (CHECKS: delta)
    delta_median_nats: float
    delta_max_nats: float
    stock_rate: float  # stock's calibration mismatch rate over both services, a fraction of tokens
    margin: float  # of the rate rule, a fraction of tokens
    largest_gap_nats: float  # stock's on calibration
    event_nats: float
    flip_cost_nats: float  # per token: flipping every calibration tie
    near_tie_budget_nats: float  # per token
    recomposition_shift_nats: float  # upper bound of |mean clipped gap at another batch composition - mean|
    num_requests: int
    num_tokens: int
    logprob_nats: float | None = None  # p99.9 of |reported - forced| log-probability; None: too few were reported
    reasons: tuple[str, ...] = ()  # how each automatic choice was made
    problems: Mapping[str, str] = dataclasses.field(default_factory=dict)  # check -> why it must be INCONCLUSIVE

    def to_json(self) -> dict[str, Any]:
        """A JSON object; ``from_json`` is the inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of ``to_json``."""
        return cls(**{**data, "reasons": tuple(data["reasons"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One system's replies to the requests of a run, aligned: output i answers request i and is scored as i."""

    name: str
    outputs: Sequence[ServedOutput]
    scores: ForcedScores
    audit: Sequence[AuditedEvent] = ()
    decoded: Sequence[str | None] = ()  # what the target's tokenizer makes of each reply's ids; None without text
    stop_texts: Sequence[tuple[str, str] | None] = ()  # of all ids and of all but the last; None without stop strings


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckInput:
    """Everything that a check may look at."""

    requests: Sequence[Request]
    stock: Arm
    candidate: Arm
    thresholds: Thresholds
    calibration_requests: Sequence[Request]
    calibration: Arm  # stock on the calibration prompts
    expect: Mapping[str, Any]  # of the candidate's config entry (vacuity)
    vocab_size: int
    seed: int
    is_strict: bool = False  # any token that differs from stock's fails: for deterministic stacks
    recomposed: Arm | None = None  # stock on the calibration prompts at another batch composition
    exercise: Mapping[str, Any] = dataclasses.field(default_factory=dict)  # of the candidate's config entry (vacuity)


class Check(Protocol):
    """A check: its name, when it applies, what it covers and what it cannot see."""

    name: str
    covers: str
    does_not_cover: str

    def applies(self, requests: Sequence[Request]) -> bool:
        """Whether this check says anything about such requests (greedy or sampled)."""

    def run(self, given: CheckInput) -> CheckResult:
        """Judge. Never raises for odd data: too little of it is INCONCLUSIVE with the reason."""


@runtime_checkable
class SeesEvidence(Protocol):
    """A check that applies only where there is something to look at; without it nothing is claimed or covered."""

    def has_evidence(self, given: CheckInput) -> bool:
        """Whether either arm brings what this check looks at."""


def has_evidence(check: Check, given: CheckInput) -> bool:
    """Whether a check has anything to look at; one that says nothing about it always has."""
    return check.has_evidence(given) if isinstance(check, SeesEvidence) else True


FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
BoolArray = NDArray[np.bool_]
