"""Arms made of token-level draws: ties, near-tie picks and mismatches as a 16-bit stack leaves them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from lossguard.checks.base import Arm, CheckInput, Thresholds
from lossguard.records import (
    AuditedEvent,
    FinishReason,
    ForcedScores,
    ReportedLogprobs,
    Request,
    SamplingParams,
    ServedOutput,
)

VOCAB_SIZE = 1000
STOP_ID = 2
TIE_SHARE = 0.026
LOWER_SHARE = 0.3


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSpec:
    """Rates of one simulated arm; ``shares`` are per-request mismatch rates."""

    name: str
    lengths: NDArray[np.int64]
    shares: NDArray[np.float64]
    lower_share: float = LOWER_SHARE


def make_requests(number: int, max_tokens: int = 64, prefix: str = "r") -> tuple[Request, ...]:
    """Greedy requests, one cluster each, over three prompt sets."""
    sampling = SamplingParams(max_tokens=max_tokens, stop_ids=(STOP_ID,))
    return tuple(
        Request(
            id=f"{prefix}-{index:04d}",
            prompt_ids=tuple(range(3, 3 + 20 + index % 200)),
            sampling=sampling,
            set=("chat", "code", "math")[index % 3],
            cluster=f"{prefix}-{index:04d}",
        )
        for index in range(number)
    )


def beta_shares(generator: np.random.Generator, number: int, rate: float, rho: float) -> NDArray[np.float64]:
    """Per-request mismatch rates with intraclass correlation rho."""
    strength = (1 - rho) / rho
    return generator.beta(rate * strength, (1 - rate) * strength, size=number)


def make_scores(
    gap: NDArray[np.float64], offsets: NDArray[np.int64], request_ids: Sequence[str], second: NDArray[np.float64]
) -> ForcedScores:
    """Scores with the given gaps and top-2 gaps; best id 10, second 11; best logits in [8, 16)."""
    number = len(gap)
    best = np.full(number, 12.0, dtype=np.float32)
    served = np.where(gap > 0, 11, 10).astype(np.int32)
    stops = offsets[1:][np.diff(offsets) > 0] - 1
    served[stops] = STOP_ID
    return ForcedScores(
        request_ids=tuple(request_ids),
        offsets=offsets,
        served_id=served,
        gap=gap.astype(np.float32),
        best_logit=best,
        rank=(gap > 0).astype(np.int32),
        best_id=np.full(number, 10, dtype=np.int32),
        logprob=(-gap).astype(np.float32),
        top_ids=np.tile(np.array([10, 11], dtype=np.int32), (number, 1)),
        top_logits=np.stack([best, best - second.astype(np.float32)], axis=1),
        finite=np.ones(number, dtype=np.bool_),
    )


def make_arm(generator: np.random.Generator, requests: Sequence[Request], spec: ArmSpec) -> Arm:
    """One arm: mismatches at its requests' rates, lower-ranked picks inside ties."""
    offsets = np.concatenate([[0], np.cumsum(spec.lengths)]).astype(np.int64)
    number = int(offsets[-1])
    owner = np.repeat(np.arange(len(requests)), spec.lengths)
    delta = 0.0625
    second = generator.exponential(2.4, size=number) + 1.1 * delta
    tie = generator.random(number) < TIE_SHARE
    second[tie] = generator.random(int(tie.sum())) * delta
    picks_lower = tie & (generator.random(number) < 2 * spec.lower_share * (1 - np.minimum(second / delta, 1)))
    wrong = ~tie & (generator.random(number) < spec.shares[owner])
    second[wrong] = delta * 1.05 + generator.exponential(0.03, size=int(wrong.sum()))
    gap = np.where(picks_lower | wrong, second, 0.0)
    scores = make_scores(gap, offsets, [request.id for request in requests], second)
    return Arm(name=spec.name, outputs=make_outputs(requests, scores), scores=scores)


def make_outputs(requests: Sequence[Request], scores: ForcedScores) -> list[ServedOutput]:
    """Replies that end with the stop id, as the scores say."""
    return [
        ServedOutput(
            request_id=request.id,
            ids=tuple(scores.served_id[scores.offsets[index] : scores.offsets[index + 1]].tolist()),
            finish_reason=FinishReason.STOP,
            stop_reason=STOP_ID,
        )
        for index, request in enumerate(requests)
    ]


def with_logprobs(arm: Arm, generator: np.random.Generator, noise_nats: float) -> Arm:
    """The arm with reported top-2 log-probabilities that differ from the forced ones by noise."""
    outputs = []
    for index, output in enumerate(arm.outputs):
        rows = slice(int(arm.scores.offsets[index]), int(arm.scores.offsets[index + 1]))
        logits = arm.scores.top_logits[rows] + generator.normal(0, noise_nats, size=(len(output.ids), 2)) - 14.0
        outputs.append(
            ServedOutput(
                request_id=output.request_id,
                ids=output.ids,
                finish_reason=output.finish_reason,
                stop_reason=output.stop_reason,
                logprobs=ReportedLogprobs(
                    served=tuple(logits[:, 0].tolist()),
                    top_ids=tuple(tuple(row) for row in arm.scores.top_ids[rows].tolist()),
                    top_logprobs=tuple(tuple(row) for row in logits.tolist()),
                ),
            )
        )
    return Arm(name=arm.name, outputs=outputs, scores=arm.scores)


def thresholds(**changes: object) -> Thresholds:
    """Plain bfloat16 thresholds; any field may be changed."""
    values: dict[str, object] = {
        "logit_dtype": "bfloat16",
        "q_nats": 0.05,
        "delta_median_nats": 0.0625,
        "delta_max_nats": 0.0625,
        "stock_rate": 0.002,
        "margin": 0.004,
        "largest_gap_nats": 0.2,
        "event_nats": 1.0,
        "flip_cost_nats": 0.0006,
        "near_tie_budget_nats": 0.0003,
        "recomposition_shift_nats": 0.0001,
        "num_requests": 80,
        "num_tokens": 4400,
    }
    return Thresholds(**{**values, **changes})  # type: ignore[arg-type]


def check_input(
    requests: Sequence[Request], candidate: Arm, stock: Arm, limits: Thresholds, expect: dict[str, object] | None = None
) -> CheckInput:
    """A check's input with stock itself as calibration."""
    return CheckInput(
        requests=requests,
        stock=stock,
        candidate=candidate,
        thresholds=limits,
        calibration_requests=requests,
        calibration=stock,
        expect=expect or {},
        vocab_size=VOCAB_SIZE,
        seed=17,
    )


def with_events(arm: Arm, places: Sequence[tuple[int, int]], *, explained: bool | None, gap: float = 3.0) -> Arm:
    """The arm with events at (request index, position), each audited with that outcome (None: not audited)."""
    gaps = arm.scores.gap.copy()
    for index, position in places:
        gaps[arm.scores.offsets[index] + position] = gap
    columns = {name: getattr(arm.scores, name) for name in ForcedScores.__dataclass_fields__}
    audit = tuple(
        AuditedEvent(
            request_id=arm.outputs[index].request_id,
            position=position,
            served_id=11,
            best_id=10,
            gap_nats=gap,
            explained=explained,
            replays={} if explained is None else {"alone": 11 if explained else 10},
            reason="not audited" if explained is None else "",
        )
        for index, position in places
    )
    return Arm(name=arm.name, outputs=arm.outputs, scores=ForcedScores(**{**columns, "gap": gaps}), audit=audit)
