"""Buckets honour the rate rule's margin: an excess within it is a note, however sure; one over it fails."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.buckets import BucketsCheck
from lossguard.records import CheckResult, Verdict
from tests.checks.simulated_arms import ArmSpec, check_input, make_arm, make_requests, thresholds

NUM_REQUESTS = 600
STOCK_RATE = 0.003


def judged(excess: float, margin: float, seed: int = 3) -> CheckResult:
    """600 replies of 60 tokens; the candidate mismatches more often everywhere by ``excess``."""
    rng = np.random.default_rng(seed)
    requests = make_requests(NUM_REQUESTS)
    lengths = np.full(NUM_REQUESTS, 60, dtype=np.int64)
    arms = [
        make_arm(rng, requests, ArmSpec(name=name, lengths=lengths, shares=np.full(NUM_REQUESTS, rate)))
        for name, rate in (("candidate", STOCK_RATE + excess), ("stock", STOCK_RATE))
    ]
    return BucketsCheck().run(check_input(requests, arms[0], arms[1], replace(thresholds(), margin=margin)))


def test_a_sure_excess_within_the_margin_is_a_note() -> None:
    found = judged(excess=0.004, margin=0.02)
    assert found.evidence["smallest_q"] <= 0.01, "it is a discovery all the same"
    assert found.verdict is Verdict.PASS
    assert any("within the margin of +2.00 pt" in note for note in found.notes)


def test_the_same_excess_over_the_margin_fails() -> None:
    found = judged(excess=0.004, margin=0.001)
    assert found.verdict is Verdict.FAIL
    assert not any("within the margin" in note for note in found.notes)


def test_the_evidence_has_each_buckets_excess() -> None:
    tests = judged(excess=0.01, margin=0.005).evidence["tests"]
    rates = [test["excess"] for test in tests if test["kind"] == "rate" and test["bucket"] == "output position 17-64"]
    assert rates == [pytest.approx(0.01, abs=0.003)]
    assert {test["excess"] for test in tests if test["kind"] == "event"} == {None}
