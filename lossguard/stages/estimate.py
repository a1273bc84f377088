"""Cost and time before a run, from a probe of a few tokens: measured here, not guessed."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from lossguard.engines.base import Engine
from lossguard.records import Request, ServedOutput
from lossguard.scoring.base import Scorer, ScoringJob
from lossguard.stages.serving import answers
from lossguard.stages.validation import scorable
from lossguard.stages.workspace import RunRequests, Workspace

PROBE_STEPS = 8
PROBE_REQUESTS = 32  # the shortest prompts: one very long one would cost more than the estimate is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """What the probe measured; seconds."""

    prompt_token: float  # serving: per prompt token
    batch_step: float  # serving: per token of a whole batch
    batch_size: int
    scored_token: float  # scoring: per prompt or reply token


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Seconds that serving and scoring will take if candidates are as fast as stock."""

    serving_seconds: float
    scoring_seconds: float


def estimate_cost(workspace: Workspace, requests: RunRequests) -> CostEstimate | None:
    """Serve and score a small probe, and tell the listener what the run will cost.

    None for a resumed run, and for one with a recorded baseline: the probe would start stock.
    """
    plan, sizes = workspace.plan, workspace.plan.sizes
    if plan.resume is not None:
        return None
    size = f"{len(requests.test)} requests x {sizes.max_tokens} tokens x {1 + len(plan.systems)} systems"
    if plan.record is not None:
        workspace.listener.message(f"plan: {sizes.name}, {size}, stock from {plan.record}")
        return None
    speed = measure_speed(workspace.engine(plan.stock), workspace.scorer, requests.calibration)
    estimate = cost_of(speed, _size(requests.calibration), _size(requests.test), len(plan.systems))
    workspace.listener.message(
        f"plan: {sizes.name}, {size}, about {in_words(estimate.serving_seconds)} serving, "
        f"{in_words(estimate.scoring_seconds)} scoring{', side by side' if workspace.ahead else ''}"
    )
    return estimate


Size = tuple[int, int, int]
"""Requests, their prompt tokens, and their reply tokens at most."""


def cost_of(speed: Speed, calibration: Size, test: Size, num_candidates: int) -> CostEstimate:
    """Calibration is served twice and scored in two arms, the test once per system and in two arms per candidate."""
    serving = 2 * _serving(speed, *calibration) + (1 + num_candidates) * _serving(speed, *test)
    scored = sum(calibration[1:]) + calibration[2] + num_candidates * (sum(test[1:]) + test[2])
    return CostEstimate(serving_seconds=serving, scoring_seconds=scored * speed.scored_token)


def _size(requests: Sequence[Request]) -> Size:
    prompt_tokens = sum(len(request.prompt_ids) for request in requests)
    return len(requests), prompt_tokens, sum(request.sampling.max_tokens for request in requests)


def _serving(speed: Speed, num_requests: int, prompt_tokens: int, reply_tokens: int) -> float:
    steps = math.ceil(num_requests / speed.batch_size) * reply_tokens / num_requests
    return prompt_tokens * speed.prompt_token + steps * speed.batch_step


def measure_speed(engine: Engine, scorer: Callable[[], Scorer], requests: Sequence[Request]) -> Speed:
    """Serve and score the shortest of the requests."""
    count = min(PROBE_REQUESTS, engine.capabilities.concurrency, len(requests))
    probes = sorted(requests, key=lambda request: len(request.prompt_ids))[:count]
    _timed(engine, probes[:1], 1)  # loads the weights
    first, _outputs = _timed(engine, probes, 1)
    whole, outputs = _timed(engine, probes, 1 + PROBE_STEPS)
    return Speed(
        prompt_token=first / sum(len(request.prompt_ids) for request in probes),
        batch_step=max(whole - first, 0.0) / PROBE_STEPS,
        batch_size=count,
        scored_token=_scoring_cost(scorer(), probes, outputs),
    )


def _timed(engine: Engine, requests: Sequence[Request], num_tokens: int) -> tuple[float, dict[str, ServedOutput]]:
    short = [
        replace(request, sampling=replace(request.sampling, max_tokens=num_tokens, min_tokens=0))
        for request in requests
    ]
    started = time.monotonic()
    outputs = answers(engine, short)
    return time.monotonic() - started, outputs


def _scoring_cost(scorer: Scorer, probes: Sequence[Request], outputs: dict[str, ServedOutput]) -> float:
    """Seconds per forwarded token."""
    jobs = [ScoringJob(request=request, outputs=(scorable(outputs[request.id]),)) for request in probes]
    started = time.monotonic()
    scorer.score(jobs)
    forwarded = sum(len(job.request.prompt_ids) + len(job.outputs[0].ids) for job in jobs)
    return (time.monotonic() - started) / forwarded


def in_words(seconds: float) -> str:
    """Seconds or minutes, rounded."""
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
