"""Reports to render: judged from simulated arms, with texts that a test chooses."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from lossguard.checks.base import Arm
from lossguard.records import CheckResult, Claim, Evidence, Verdict
from lossguard.report.json_report import RunFacts, build_report
from lossguard.stages.judging import Judgement, judge
from tests.checks.simulated_arms import (
    ArmSpec,
    beta_shares,
    check_input,
    make_arm,
    make_requests,
    thresholds,
    with_events,
)

NUM_REQUESTS = 220
POWER = {
    "detectable_excess_points": 0.8,
    "pass_given_lossless_fraction": 0.96,
    "fail_given_lossless_fraction": 0.0025,
    "num_tokens": 13_000,
    "deff": 1.2,
    "num_replicates": 400,
}
PAIRS = {
    "pair_gains": [0.11, 0.13, 0.12],
    "pair_lowers": [0.09, 0.12, 0.10],
    "pair_uppers": [0.13, 0.14, 0.14],
    "running_gains": [0.11, 0.12, 0.12],
    "gain": 0.12,
    "gain_lower": 0.1,
    "gain_upper": None,
    "threshold": 0.05,
    "noise_gains": [0.001],
    "noise_band": 0.002,
}


def in_brackets(*ids: int) -> str:
    """``<7><11>``."""
    return "".join(f"<{token}>" for token in ids)


def judged(
    name: str = "faulty",
    places: Sequence[tuple[int, int]] = (),
    decode: Callable[..., str] = in_brackets,
    *,
    num_requests: int = NUM_REQUESTS,
    length: int | None = None,
) -> Claim:
    """One candidate with audited, unexplained events at (request index, position)."""
    generator = np.random.default_rng(7)
    requests = make_requests(num_requests)
    lengths = generator.integers(46, 64, size=num_requests) if length is None else np.full(num_requests, length)
    arms: list[Arm] = [
        make_arm(generator, requests, ArmSpec(name=arm, lengths=lengths, shares=shares))
        for arm, shares in (
            ("stock", beta_shares(generator, num_requests, 0.002, 0.002)),
            (name, beta_shares(generator, num_requests, 0.002, 0.002)),
        )
    ]
    given = check_input(requests, with_events(arms[1], places, explained=False), arms[0], thresholds())
    return judge(Judgement(given=given, power=POWER, decode=decode))


def timed(name: str = "faulty") -> Claim:
    """A speed claim that passes."""
    check = CheckResult(
        check="speed",
        verdict=Verdict.PASS,
        summary="gain +12.00 %, 95 % lower bound +10.00 %, upper unbounded; threshold +5.00 %",
        candidate="+12.00 %",
        stock="80 ms",
        bound="+10.00 % .. unbounded",
        limit="+5.00 %",
        evidence={"rule": "faster", "plot_data": PAIRS},
    )
    evidence = Evidence(
        checks=(check,), does_not_cover=("other batch sizes",), gain=0.12, gain_lower_bound=0.1, gain_upper_bound=None
    )
    return Claim(id=f"{name}/speed", candidate=name, baseline="stock", verdict=Verdict.PASS, evidence=evidence)


def report_of(claims: Sequence[Claim], **run: Any) -> dict[str, Any]:
    """The JSON report of these claims."""
    verdict = Verdict.combine([claim.verdict for claim in claims])
    facts = RunFacts(
        run={
            "id": "run-0008",
            "started": "2026-01-02T03:04:05+00:00",
            "seed": 17,
            "budget": {"name": "standard", "num_requests": 240, "max_tokens": 256, "num_calibration": 80},
            "temperature": 0.0,
            "repeats": 1,
            "command": ["lossguard", "check", "--candidate", claims[0].candidate],
            "folder": ".lossguard/run-0008",
            "report_path": ".lossguard/run-0008/report.json",
            "baseline": None,
            **run,
        },
        fingerprint={
            "stock": {"engine": {"version": "1"}},
            "candidates": {claim.candidate: {"engine": {"version": "2"}} for claim in claims},
            "differences": {claim.candidate: ["engine.version: 1 in stock, 2 here"] for claim in claims},
            "scorer": {"engine": "torch"},
        },
        prompts={"sha256": "a" * 64, "sets": ["chat"], "num_clusters": NUM_REQUESTS, "reasons": ["drawn with seed 1"]},
        thresholds=thresholds(reasons=("q: the median",)).to_json(),
        integrity={"prompts_sha256": "a" * 64, "rules_sha256": "b" * 64},
        producer_version="0.1",
    )
    codes = {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.INCONCLUSIVE: 10}
    return build_report(claims, facts, codes[verdict])


def renamed(claim: Claim, name: str) -> Claim:
    """The same claim about a candidate of another name."""
    return replace(claim, candidate=name, id=f"{name}/lossless")
