"""Small records without any engine, and hypothesis strategies for them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st
from numpy.typing import NDArray

from lossguard.baseline.schema import BaselineRecord
from lossguard.checks.base import Thresholds
from lossguard.fingerprint import Fingerprint
from lossguard.records import FinishReason, ForcedScores, Request, SamplingParams, ServedOutput, Usage

PARAMETERS: dict[str, Any] = {"model": "m", "sizes": {"num_requests": 2, "max_tokens": 4, "num_calibration": 1}}
THRESHOLDS = Thresholds(
    logit_dtype="bfloat16",
    q_nats=0.03,
    delta_median_nats=0.06,
    delta_max_nats=0.125,
    stock_rate=0.001,
    margin=0.002,
    largest_gap_nats=0.2,
    event_nats=1.0,
    flip_cost_nats=0.0008,
    near_tie_budget_nats=0.0004,
    recomposition_shift_nats=0.0001,
    num_requests=1,
    num_tokens=3,
    reasons=("margin 0.2 points: because",),
    problems={"near-tie": "too few ties"},
)


def request(name: str, prompt_ids: Sequence[int] = (1, 2, 3), **sampling: Any) -> Request:
    return Request(
        id=name,
        prompt_ids=tuple(prompt_ids),
        sampling=SamplingParams(max_tokens=4, stop_ids=(0,), **sampling),
        set="chat",
        cluster=name,
    )


def output(name: str, ids: Sequence[int] = (4, 5, 0), **more: Any) -> ServedOutput:
    return ServedOutput(request_id=name, ids=tuple(ids), finish_reason=FinishReason.STOP, stop_reason=0, **more)


def scores(outputs: Sequence[ServedOutput], seed: int = 0, *, sampled: bool = False) -> ForcedScores:
    """Arbitrary scores of these replies; ids that do not exist have an infinite gap, as from a scorer."""
    rng, lengths = np.random.default_rng(seed), [len(item.ids) for item in outputs]
    number = sum(lengths)

    def floats(*shape: int) -> NDArray[np.float32]:
        return rng.normal(size=(number, *shape)).astype(np.float32)

    gap = np.abs(floats())
    gap[: number // 3] = np.inf
    return ForcedScores(
        request_ids=tuple(item.request_id for item in outputs),
        offsets=np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64),
        served_id=np.array([token for item in outputs for token in item.ids], dtype=np.int32),
        gap=gap,
        best_logit=floats(),
        rank=rng.integers(0, 9, number).astype(np.int32),
        best_id=rng.integers(0, 9, number).astype(np.int32),
        logprob=floats(),
        top_ids=rng.integers(0, 9, (number, 2)).astype(np.int32),
        top_logits=floats(2),
        finite=rng.random(number) < 0.9,
        entropy=floats() if sampled else None,
        surprisal_variance=floats() if sampled else None,
        pit_low=floats() if sampled else None,
        pit_high=floats() if sampled else None,
        in_support=rng.random(number) < 0.9 if sampled else None,
        sampled_logprob=floats() if sampled else None,
        support_gap=floats() if sampled else None,
    )


def record(claim: str = "tree-verify/greedy", name: str = "stock", **changes: Any) -> BaselineRecord:
    """A record of one calibration and two test requests."""
    calibration, test = (request("c0"),), (request("t0"), request("t1", (7,)))
    replies = (output("c0"),)
    values: dict[str, Any] = {
        "name": name,
        "claim": claim,
        "created": "2026-01-02T03:04:05+00:00",
        "producer_version": "0.1.0",
        "rules_sha256": "ab" * 32,
        "parameters": PARAMETERS,
        "scorer": {"engine": "torch", "options": {}},
        "prompts_sha256": "cd" * 32,
        "prompt_reasons": ("3 prompts",),
        "calibration_requests": calibration,
        "test_requests": test,
        "calibration": replies,
        "recomposed": replies,
        "test": (output("t0", (4, 4)), output("t1", ())),
        "calibration_scores": scores(replies),
        "recomposed_scores": scores(replies, 1),
        "thresholds": THRESHOLDS,
        "fingerprint": Fingerprint(identity={"versions.torch": "2.13.0"}, measured={"load": 0.5}),
    }
    return BaselineRecord(**{**values, **changes})


TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=6)
TOKENS = st.lists(st.integers(0, 2**31 - 1), max_size=5).map(tuple)
FLOATS = st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def outputs_for(draw: st.DrawFn, requests: Sequence[Request]) -> tuple[ServedOutput, ...]:
    """A reply to each request, with everything that a record keeps."""
    usage = st.builds(Usage, prompt_tokens=st.integers(0, 9), completion_tokens=st.integers(0, 9))
    telemetry = st.dictionaries(TEXT, st.lists(FLOATS, max_size=3).map(tuple), max_size=3)
    return tuple(
        ServedOutput(
            request_id=item.id,
            ids=draw(TOKENS),
            finish_reason=draw(st.sampled_from(FinishReason)),
            stop_reason=draw(st.none() | st.integers() | TEXT),
            usage=draw(st.none() | usage),
            text=draw(st.none() | TEXT),
            telemetry=draw(telemetry),
        )
        for item in requests
    )


@st.composite
def requests_of(draw: st.DrawFn) -> tuple[Request, ...]:
    """Up to three requests with ids of their own."""
    names = draw(st.lists(TEXT, max_size=3, unique=True))
    return tuple(
        request(
            name,
            draw(TOKENS),
            temperature=draw(st.floats(0, 2)),
            stop_strings=draw(st.lists(TEXT, max_size=2).map(tuple)),
            logit_bias=draw(st.lists(st.tuples(st.integers(0, 9), FLOATS), max_size=2).map(tuple)),
            seed=draw(st.none() | st.integers(0, 9)),
        )
        for name in names
    )


@st.composite
def records(draw: st.DrawFn) -> BaselineRecord:
    """Records over few and short requests, none included."""
    calibration, test = draw(requests_of()), draw(requests_of())
    replies, recomposed = draw(outputs_for(calibration)), draw(outputs_for(calibration))
    seed, sampled = draw(st.integers(0, 99)), draw(st.booleans())
    return record(
        claim=draw(TEXT.filter(str.strip)),
        calibration_requests=calibration,
        test_requests=test,
        calibration=replies,
        recomposed=recomposed,
        test=draw(outputs_for(test)),
        calibration_scores=scores(replies, seed, sampled=sampled),
        recomposed_scores=scores(recomposed, seed + 1, sampled=sampled),
        prompt_reasons=tuple(draw(st.lists(TEXT, max_size=2))),
    )
