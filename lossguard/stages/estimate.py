"""Cost and time before a run, from a probe of a few tokens: measured here, not guessed."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace

from lossguard.records import Request, ServedOutput
from lossguard.scoring.base import ScoringJob
from lossguard.stages.serving import answers
from lossguard.stages.validation import scorable
from lossguard.stages.workspace import RunRequests, Workspace

PROBE_TOKENS = 8
PROBE_REQUESTS = 8  # of middle length: a batch with one very long prompt would cost more than the estimate is worth


@dataclass(frozen=True, slots=True, kw_only=True)
class CostEstimate:
    """Seconds that serving and scoring will take if candidates are as fast as stock."""

    serving_seconds: float
    scoring_seconds: float
    num_served_tokens: int


def estimate_cost(workspace: Workspace, requests: RunRequests) -> CostEstimate | None:
    """Serve and score a small probe, and tell the listener what the run will cost. None for a resumed run."""
    plan, sizes = workspace.plan, workspace.plan.sizes
    if plan.resume is not None:
        return None
    num_systems = 1 + len(plan.systems)
    line = f"plan: {sizes.name}, {len(requests.test)} requests x {sizes.max_tokens} tokens x {num_systems} systems"
    serving, scoring = _probe(workspace, requests.calibration)
    served = sizes.max_tokens * (len(requests.test) * num_systems + 2 * len(requests.calibration))
    scored = sizes.max_tokens * (2 * len(requests.test) * len(plan.systems) + 2 * len(requests.calibration))
    estimate = CostEstimate(
        serving_seconds=served * serving, scoring_seconds=scored * scoring, num_served_tokens=served
    )
    workspace.listener.message(
        f"{line}, about {_time(estimate.serving_seconds)} serving, {_time(estimate.scoring_seconds)} scoring"
    )
    return estimate


def _probe(workspace: Workspace, requests: Sequence[Request]) -> tuple[float, float]:
    """(seconds per served token, seconds per scored token)."""
    engine = workspace.engine(workspace.plan.stock)
    count = min(PROBE_REQUESTS, engine.capabilities.concurrency, len(requests))
    tokens = min(PROBE_TOKENS, requests[0].sampling.max_tokens)
    probes = [
        replace(request, sampling=replace(request.sampling, max_tokens=tokens)) for request in _middle(requests, count)
    ]
    short = [replace(probe, sampling=replace(probe.sampling, max_tokens=2)) for probe in probes]
    list(engine.serve(short))  # loads the weights and warms up
    started = time.monotonic()
    outputs = answers(engine, probes)
    serving = (time.monotonic() - started) / max(1, sum(len(output.ids) for output in outputs.values()))
    return serving, _scoring_cost(workspace, probes, outputs)


def _middle(requests: Sequence[Request], count: int) -> list[Request]:
    by_length = sorted(requests, key=lambda request: len(request.prompt_ids))
    first = (len(by_length) - count) // 2
    return by_length[first : first + count]


def _scoring_cost(workspace: Workspace, probes: Sequence[Request], outputs: dict[str, ServedOutput]) -> float:
    jobs = [ScoringJob(request=request, outputs=(scorable(outputs[request.id]),)) for request in probes]
    scorer = workspace.scorer()
    started = time.monotonic()
    scorer.score(jobs)
    seconds = time.monotonic() - started
    forwarded = sum(len(job.request.prompt_ids) + len(job.outputs[0].ids) for job in jobs)
    sizes = workspace.plan.sizes
    mean_prompt = sum(len(probe.prompt_ids) for probe in probes) / len(probes)
    # a reply's share of one forwarded token, with its part of the prompt
    return seconds / forwarded * (mean_prompt + sizes.max_tokens) / sizes.max_tokens


def _time(seconds: float) -> str:
    return f"{seconds / 60:.0f} min" if seconds >= 90 else f"{seconds:.0f} s"
