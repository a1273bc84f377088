"""The values that cross every boundary: requests, served outputs, forced scores, verdicts.

Standard library only, so that importing it costs nothing. JSON forms are the contract of the run folder.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Self

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

type_of_json = Any  # JSON values: dict, list, str, int, float, bool, None

REPLAYED_PARAMETERS = (
    "repetition_penalty",
    "presence_penalty",
    "frequency_penalty",
    "logit_bias",
    "bad_words",
    "grammar",
    "min_tokens",
)
"""Parameters that change which token is best: a scorer replays them, or says that it does not."""


class Verdict(str, Enum):
    """PASS, FAIL or INCONCLUSIVE; INCONCLUSIVE is red."""

    PASS = "PASS"
    FAIL = "FAIL"
    INCONCLUSIVE = "INCONCLUSIVE"

    @property
    def is_pass(self) -> bool:
        """True only for PASS."""
        return self is Verdict.PASS

    @staticmethod
    def combine(verdicts: Sequence[Verdict]) -> Verdict:
        """FAIL if any fails, PASS if all pass (and there is one), else INCONCLUSIVE."""
        if any(verdict is Verdict.FAIL for verdict in verdicts):
            return Verdict.FAIL
        if verdicts and all(verdict is Verdict.PASS for verdict in verdicts):
            return Verdict.PASS
        return Verdict.INCONCLUSIVE


class FinishReason(str, Enum):
    """Why a reply ended, as the engine reports it."""

    STOP = "stop"
    LENGTH = "length"
    ABORT = "abort"


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingParams:
    """Everything that a request may ask of the sampler. Defaults are greedy decoding with no constraint.

    ``top_k`` 0 and ``top_p`` 1 switch those filters off; ``logprobs`` is how many top log-probabilities per
    token the engine should report (0: none).
    """

    max_tokens: int
    min_tokens: int = 0
    temperature: float = 0.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    repetition_penalty: float = 1.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    stop_ids: tuple[int, ...] = ()
    stop_strings: tuple[str, ...] = ()
    ignore_eos: bool = False
    logit_bias: tuple[tuple[int, float], ...] = ()
    bad_words: tuple[tuple[int, ...], ...] = ()
    grammar: str | None = None
    seed: int | None = None
    n: int = 1
    logprobs: int = 0

    @property
    def is_greedy(self) -> bool:
        """Greedy decoding: temperature 0."""
        return self.temperature == 0.0

    def replayed_parameters(self) -> tuple[str, ...]:
        """Names of the parameters in use that change which token is best, in the order of ``REPLAYED_PARAMETERS``."""
        used = self.non_default()
        return tuple(name for name in REPLAYED_PARAMETERS if name in used)

    def non_default(self) -> frozenset[str]:
        """Names of the fields that differ from plain greedy decoding (``max_tokens`` and ``logprobs`` aside)."""
        plain = SamplingParams(max_tokens=self.max_tokens, logprobs=self.logprobs)
        names = (item.name for item in dataclasses.fields(self))
        return frozenset(name for name in names if getattr(self, name) != getattr(plain, name))


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """One prompt as token ids, with what is asked of it.

    ``stop_ids`` in ``sampling`` hold the model's end-of-sequence ids too, so that a judge needs no tokenizer.
    ``cluster`` is the unit of the statistics: repeats of a prompt and prompts sharing text carry the same one.
    """

    id: str
    prompt_ids: tuple[int, ...]
    sampling: SamplingParams
    set: str
    cluster: str
    repeat_id: int = 0
    chat_template_hash: str | None = None
    lora_id: str | None = None

    def to_json(self) -> dict[str, type_of_json]:
        """A JSON object; ``from_json`` is the inverse."""
        return dataclasses.asdict(self)

    @classmethod
    def from_json(cls, data: Mapping[str, type_of_json]) -> Self:
        """Inverse of ``to_json``. Raises TypeError or KeyError on other fields."""
        values = dict(data)
        sampling = dict(values.pop("sampling"))
        sampling["stop_ids"] = tuple(sampling["stop_ids"])
        sampling["stop_strings"] = tuple(sampling["stop_strings"])
        sampling["logit_bias"] = tuple((int(token), float(bias)) for token, bias in sampling["logit_bias"])
        sampling["bad_words"] = tuple(tuple(word) for word in sampling["bad_words"])
        values["prompt_ids"] = tuple(values["prompt_ids"])
        return cls(sampling=SamplingParams(**sampling), **values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Token counts as the engine reports them; evidence about the engine, never used as evidence for it."""

    prompt_tokens: int
    completion_tokens: int
    reasoning_tokens: int | None = None
    cached_tokens: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportedLogprobs:
    """Log-probabilities (nats) that the engine reports.

    ``served`` has one value per served token; ``top_ids`` and ``top_logprobs`` one row per served token, best
    first. Values are those of the distribution before temperature and filters.
    """

    served: tuple[float, ...]
    top_ids: tuple[tuple[int, ...], ...] = ()
    top_logprobs: tuple[tuple[float, ...], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedOutput:
    """What came back for one request.

    ``ids`` keep the stop token as a served token. ``sent_ns`` and ``arrival_ns`` (one per token) are the
    client's monotonic clock. ``telemetry`` columns (``batch``, ``drafts``, ``accepted``, ``cached``,
    ``preempted``, ...) have one value per served token, or a single value for the whole request.
    """

    request_id: str
    ids: tuple[int, ...]
    finish_reason: FinishReason
    stop_reason: int | str | None = None
    sent_ns: int = 0
    arrival_ns: tuple[int, ...] = ()
    logprobs: ReportedLogprobs | None = None
    usage: Usage | None = None
    text: str | None = None
    telemetry: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def to_json(self) -> dict[str, type_of_json]:
        """A JSON object; ``from_json`` is the inverse."""
        data = dataclasses.asdict(self)
        data["finish_reason"] = self.finish_reason.value
        if self.logprobs is not None:
            data["logprobs"]["served"] = _finite_or_null(self.logprobs.served)
            data["logprobs"]["top_logprobs"] = [_finite_or_null(row) for row in self.logprobs.top_logprobs]
        return data

    @classmethod
    def from_json(cls, data: Mapping[str, type_of_json]) -> Self:
        """Inverse of ``to_json``. Raises TypeError, KeyError or ValueError on other fields."""
        values = dict(data)
        reported = values.pop("logprobs", None)
        usage = values.pop("usage", None)
        values["ids"] = tuple(values["ids"])
        values["arrival_ns"] = tuple(values.get("arrival_ns", ()))
        values["finish_reason"] = FinishReason(values["finish_reason"])
        values["telemetry"] = {key: tuple(column) for key, column in values.get("telemetry", {}).items()}
        return cls(
            logprobs=None if reported is None else _reported_from_json(reported),
            usage=None if usage is None else Usage(**usage),
            **values,
        )


def _finite_or_null(values: Sequence[float]) -> list[float | None]:
    """A reported NaN or infinity is a finding, not a reason to lose the line: JSON keeps it as null."""
    return [value if math.isfinite(value) else None for value in values]


def _null_to_nan(values: Sequence[float | None]) -> tuple[float, ...]:
    return tuple(math.nan if value is None else value for value in values)


def _reported_from_json(data: Mapping[str, type_of_json]) -> ReportedLogprobs:
    return ReportedLogprobs(
        served=_null_to_nan(data["served"]),
        top_ids=tuple(tuple(row) for row in data["top_ids"]),
        top_logprobs=tuple(_null_to_nan(row) for row in data["top_logprobs"]),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedScores:
    """Teacher-forced scores of served tokens as column arrays; T tokens of R requests, request by request.

    Logits are those of the target with an FP32 LM head, in nats. Never turned into Python objects token by
    token. The columns after ``finite`` are filled for sampled requests only: moments of the distribution under the
    request's own sampling, bounds of the probability integral transform, whether the token was allowed, its
    log-probability under that sampling, and by how many nats it was outside (0: allowed). Then come those of replayed
    parameters: gap and best token without them, and whether they could be replayed.
    """

    request_ids: tuple[str, ...]
    offsets: NDArray[np.int64]  # [R + 1], tokens of request i are offsets[i]:offsets[i + 1]
    served_id: NDArray[np.int32]  # [T]
    gap: NDArray[np.float32]  # [T] best logit minus the served token's logit, >= 0; inf for ids that do not exist
    best_logit: NDArray[np.float32]  # [T]
    rank: NDArray[np.int32]  # [T] 0 is the best token; ties by lower id
    best_id: NDArray[np.int32]  # [T]
    logprob: NDArray[np.float32]  # [T] log-probability of the served token at temperature 1
    top_ids: NDArray[np.int32]  # [T, k] best first, k >= 2
    top_logits: NDArray[np.float32]  # [T, k]
    finite: NDArray[np.bool_]  # [T] False where a logit was NaN or +-inf
    entropy: NDArray[np.float32] | None = None  # [T]
    surprisal_variance: NDArray[np.float32] | None = None  # [T]
    pit_low: NDArray[np.float32] | None = None  # [T]
    pit_high: NDArray[np.float32] | None = None  # [T]
    in_support: NDArray[np.bool_] | None = None  # [T]
    sampled_logprob: NDArray[np.float32] | None = None  # [T] -inf outside the support
    support_gap: NDArray[np.float32] | None = None  # [T]
    plain_gap: NDArray[np.float32] | None = None  # [T]
    plain_best_id: NDArray[np.int32] | None = None  # [T]
    replayed: NDArray[np.bool_] | None = None  # [T] False where a parameter of the request could not be replayed

    @property
    def num_tokens(self) -> int:
        """Number of scored tokens."""
        return int(self.offsets[-1])


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditedEvent:
    """One large-margin token, and what stock serves there in forced decode.

    ``replays`` maps a configuration (``alone``, ``batch-64``, ``batch-32``) to the token that stock served.
    ``explained`` is None if the position was not audited.
    """

    request_id: str
    position: int
    served_id: int
    best_id: int
    gap_nats: float
    explained: bool | None
    replays: Mapping[str, int] = field(default_factory=dict)
    reason: str = ""
    prefix_hash: str = ""  # of the reply up to and with the position: an audit holds for these tokens only

    def to_json(self) -> dict[str, type_of_json]:
        """A JSON object; ``from_json`` is the inverse. The infinite gap of an id that does not exist is null."""
        gap = self.gap_nats if math.isfinite(self.gap_nats) else None
        return {**dataclasses.asdict(self), "gap_nats": gap}

    @classmethod
    def from_json(cls, data: Mapping[str, type_of_json]) -> Self:
        """Inverse of ``to_json``. Raises TypeError or KeyError on other fields."""
        gap = math.inf if data["gap_nats"] is None else data["gap_nats"]
        return cls(**{**data, "gap_nats": gap})


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckResult:
    """The verdict of one check with the numbers behind it.

    ``candidate``, ``stock``, ``bound`` and ``limit`` are for the table; ``evidence`` holds the same as numbers
    (JSON only, finite, units in the key); ``notes`` are sentences for people.
    """

    check: str
    verdict: Verdict
    summary: str
    candidate: str = ""
    stock: str = ""
    bound: str = ""
    limit: str = ""
    evidence: Mapping[str, type_of_json] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    def to_json(self) -> dict[str, type_of_json]:
        """A JSON object with the verdict as its value."""
        data = dataclasses.asdict(self)
        data["verdict"] = self.verdict.value
        data["notes"] = list(self.notes)
        return data


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """The likely family of the fault behind a FAIL, for people; it decides nothing.

    ``family`` is ``unknown`` where no pattern, or more than one, fits. ``also`` are further families that the same
    errors show, ``causes`` what to look at first, ``scores_nats`` the best score of each family.
    """

    family: str
    evidence: str  # a sentence of counts
    reason: str  # why this family, or why none
    causes: str = ""
    also: tuple[str, ...] = ()
    scores_nats: Mapping[str, float] = field(default_factory=dict)

    @property
    def sentence(self) -> str:
        """The counts and the family in one sentence."""
        causes = f" ({self.causes})" if self.causes else f" ({self.reason})"
        also = f", with {', '.join(self.also)}" if self.also else ""
        return f"{self.evidence}; likely family: {self.family}{also}{causes}"

    def to_json(self) -> dict[str, type_of_json]:
        """A JSON object, with the sentence."""
        return {**dataclasses.asdict(self), "also": list(self.also), "sentence": self.sentence}


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """What stands behind a claim's verdict: every check, sizes, power, examples, and what was not covered."""

    checks: tuple[CheckResult, ...]
    sizes: Mapping[str, type_of_json] = field(default_factory=dict)
    power: Mapping[str, type_of_json] = field(default_factory=dict)
    examples: tuple[Mapping[str, type_of_json], ...] = ()
    covers: tuple[str, ...] = ()
    does_not_cover: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None  # of a FAIL
    figures: Mapping[str, type_of_json] = field(default_factory=dict)  # numbers behind the report's pictures
    gain: float | None = None
    """Of a speed claim, as a fraction (0.2: 20 % faster); the bounds are one-sided 95 %. None: not measured."""
    gain_lower_bound: float | None = None
    gain_upper_bound: float | None = None

    def check(self, name: str) -> CheckResult:
        """The result of the check of that name; KeyError if it did not run."""
        for result in self.checks:
            if result.check == name:
                return result
        raise KeyError(name)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """One thing asserted about a candidate, under an id that the author chose."""

    id: str
    candidate: str
    baseline: str
    verdict: Verdict
    evidence: Evidence


def require_finite(value: type_of_json, path: str = "$") -> None:
    """Raise ValueError for NaN, infinity or a type that is not JSON's, naming the place."""
    if value is None or isinstance(value, (str, bool, int)):
        return
    if isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError(f"{path} is {value}")
    elif isinstance(value, Mapping):
        for key, item in value.items():
            require_finite(item, f"{path}.{key}")
    elif isinstance(value, (list, tuple)):
        for index, item in enumerate(value):
            require_finite(item, f"{path}[{index}]")
    else:
        raise ValueError(f"{path} is a {type(value).__name__}, which JSON does not have")
