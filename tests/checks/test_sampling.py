"""The checks of sampled replies: columns by hand, error rates by simulation, samplers of the adversarial suite."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import poisson

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.drawn_tokens import drawn_tokens, share_below
from lossguard.checks.improbable import ImprobableDraws
from lossguard.checks.sampling import (
    LARGEST_MARGIN,
    LEAST_MARGIN,
    SamplingCheck,
    SurpriseComparison,
    surprise_verdict,
    temperature_margin,
)
from lossguard.checks.support import SupportCheck
from lossguard.records import CheckResult, ForcedScores, SamplingParams, Verdict
from lossguard_suites.adversarial.faults import fault
from lossguard_suites.adversarial.faults import sampled_faults as faults
from tests.checks.sampled_arms import Law, exact, sampled_requests, sampled_run
from tests.checks.simulated_arms import make_requests
from tests.suites.tiny_faults import context_of
from tests.suites.tiny_faults import make_requests as tiny_requests

NUM_RUNS = 40
NUM_SLOW_RUNS = 120


def law_of(factory: Any, **arguments: Any) -> Law:
    """What a faulty sampler of the suite serves, with the filters that transformers applies after it."""

    def law(logits: torch.Tensor, sampling: Any) -> torch.Tensor:
        asked = tiny_requests(len(logits), temperature=sampling.temperature, top_p=sampling.top_p)
        return exact(factory(context_of(asked), **arguments)(None, logits), sampling)

    return law


def changed(arm: Arm, **columns: Any) -> Arm:
    return replace(arm, scores=replace(arm.scores, **columns))


def with_candidate(run: CheckInput, arm: Arm) -> CheckInput:
    return replace(run, candidate=arm)


def test_stock_against_itself_differs_by_nothing() -> None:
    run = sampled_run(0)
    result = SamplingCheck().run(with_candidate(run, replace(run.stock, name="same")))
    assert result.verdict is Verdict.PASS
    assert result.evidence["surprise_difference_nats_per_token"] == 0.0
    assert result.evidence["transform_largest_difference"] == 0.0
    assert result.evidence["transform_p"] == 1.0


@settings(max_examples=10, deadline=None)
@given(st.integers(0, 10_000), st.sampled_from([0.6, 1.0, 1.4]), st.sampled_from([1.0, 0.9]))
def test_exact_draws_have_a_centred_surprise_and_a_uniform_transform(
    seed: int, temperature: float, top_p: float
) -> None:
    run = sampled_run(seed, num_requests=60, noise_nats=0.0, temperature=temperature, top_p=top_p)
    tokens = drawn_tokens(run, run.candidate)
    assert abs(tokens.z) < 4.5
    for level in (0.25, 0.5, 0.9):
        below = share_below(tokens, level)
        assert abs(below.mean() - level) < 4.5 * below.std() / len(below) ** 0.5


def test_a_token_of_a_greedy_request_or_without_a_score_says_nothing() -> None:
    run = sampled_run(1, num_requests=40)
    finite = run.candidate.scores.finite.copy()
    finite[:10] = False
    broken = replace(run.candidate, scores=replace(run.candidate.scores, finite=finite))
    assert drawn_tokens(run, broken).num_drawn == drawn_tokens(run, run.candidate).num_drawn - 10
    mixed = replace(run, requests=(make_requests(1)[0], *run.requests[1:]))
    first = int(run.candidate.scores.offsets[1])
    assert drawn_tokens(mixed, run.candidate).num_drawn == run.candidate.scores.num_tokens - first


def test_it_applies_to_sampled_requests_alone() -> None:
    assert SamplingCheck().applies(sampled_requests(2))
    assert not SamplingCheck().applies(make_requests(2))
    assert SupportCheck().applies(sampled_requests(2, top_p=0.9))
    assert not SupportCheck().applies(sampled_requests(2))
    assert not SupportCheck().applies(make_requests(2))


def without_columns(arm: Arm) -> Arm:
    return changed(arm, entropy=None, surprisal_variance=None, pit_low=None, pit_high=None, in_support=None,
                   sampled_logprob=None, support_gap=None)  # fmt: skip


def nothing_drawn(arm: Arm) -> Arm:
    return changed(arm, finite=np.zeros(arm.scores.num_tokens, dtype=np.bool_))


def one_token_each(arm: Arm) -> Arm:
    return changed(arm, surprisal_variance=np.zeros(arm.scores.num_tokens, dtype=np.float32))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (without_columns, "gives no distributions"),
        (nothing_drawn, "no token that the target could have drawn"),
        (one_token_each, "nothing was drawn"),
    ],
)
def test_what_cannot_be_judged_is_inconclusive(change: Any, reason: str) -> None:
    run = sampled_run(2, num_requests=40)
    result = SamplingCheck().run(replace(run, candidate=change(run.candidate), stock=change(run.stock)))
    assert result.verdict is Verdict.INCONCLUSIVE
    assert reason in result.summary


def test_few_clusters_can_fail_and_never_pass() -> None:
    assert SamplingCheck().run(sampled_run(3, num_requests=150)).verdict is Verdict.INCONCLUSIVE
    cold = sampled_run(3, law_of(faults.served_greedily), num_requests=60)
    assert SamplingCheck().run(cold).verdict is Verdict.FAIL
    assert SamplingCheck().run(sampled_run(3, num_requests=5)).verdict is Verdict.INCONCLUSIVE


def bounds(lower_fail: float, lower: float, upper: float, upper_fail: float) -> SurpriseComparison:
    return SurpriseComparison(difference=(lower + upper) / 2, standard_error=0.01, upper_95=upper, lower_95=lower,
                              upper_fail=upper_fail, lower_fail=lower_fail)  # fmt: skip


@pytest.mark.parametrize(
    ("found", "clusters", "verdict"),
    [
        (bounds(-0.03, -0.02, 0.02, 0.03), 200, Verdict.PASS),
        (bounds(-0.03, -0.02, 0.02, 0.03), 199, Verdict.INCONCLUSIVE),
        (bounds(0.01, 0.02, 0.04, 0.05), 200, Verdict.PASS),  # within the margin, however certain
        (bounds(0.01, 0.02, 0.06, 0.07), 50, Verdict.FAIL),
        (bounds(-0.07, -0.06, -0.02, -0.01), 200, Verdict.FAIL),
        (bounds(-0.01, 0.01, 0.06, 0.07), 200, Verdict.INCONCLUSIVE),
    ],
)
def test_the_verdict_on_surprise(found: SurpriseComparison, clusters: int, verdict: Verdict) -> None:
    assert surprise_verdict(found, 0.05, clusters) is verdict


def test_the_margin_is_five_percent_of_the_temperature_where_the_run_can_tell() -> None:
    large = sampled_run(4, num_requests=400, mean_tokens=100)
    small = sampled_run(4, num_requests=20, mean_tokens=20)
    assert temperature_margin(drawn_tokens(large, large.stock)) == LEAST_MARGIN
    assert temperature_margin(drawn_tokens(small, small.stock)) == LARGEST_MARGIN


FAULTS: dict[str, tuple[Any, dict[str, Any]]] = {
    "greedy-draft": (faults.greedy_draft, {}),
    "served-greedily": (faults.served_greedily, {}),
    "half-greedy": (faults.served_greedily, {"share": 0.5}),
    "lax-threshold": (faults.lax_threshold, {}),
    "ratio-of-best": (faults.ratio_of_best_children, {}),
    "cooled": (faults.cooled, {}),
    "undeclared-nucleus": (faults.undeclared_nucleus, {}),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faulty_samplers_fail(name: str) -> None:
    """In each of three runs of 200 requests of about 64 tokens, the quick budget."""
    assert fault(name).seen_by == ("sampling",)
    factory, arguments = FAULTS[name]
    results = [SamplingCheck().run(sampled_run(seed, law_of(factory, **arguments), num_requests=200, mean_tokens=64))
               for seed in range(3)]  # fmt: skip
    assert [result.verdict for result in results] == [Verdict.FAIL] * 3, results[0].summary


def test_an_early_nucleus_fails() -> None:
    law = law_of(faults.early_nucleus)
    result = SamplingCheck().run(sampled_run(0, law, temperature=1.3, top_p=0.9))
    assert result.verdict is Verdict.FAIL, result.summary


def wrong_tokens(number: int) -> Law:
    """The target's law, but for the last token of the most peaked distributions, ``number`` times."""

    def law(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
        wrong = exact(logits, sampling).clone()
        last = logits.argmin(dim=-1)
        tails = logits.double().softmax(dim=-1).gather(1, last[:, None]).squeeze(1)
        rows = tails.argsort()[:number]
        wrong[rows, last[rows]] = 1_000.0
        return wrong

    return law


@pytest.mark.parametrize(("number", "verdict"), [(0, Verdict.PASS), (6, Verdict.FAIL)])
def test_a_few_wrong_tokens_fail_though_no_mean_moves(number: int, verdict: Verdict) -> None:
    result = SamplingCheck().run(sampled_run(5, wrong_tokens(number)))
    assert result.verdict is verdict
    assert result.evidence["surprise_verdict"] == result.evidence["transform_verdict"] == "PASS"
    assert result.evidence["improbable_verdict"] == verdict.value
    assert number <= result.evidence["num_requests_improbable"] <= number + 2  # exact draws give one now and then


@given(st.integers(0, 30), st.integers(0, 30), st.integers(1, 200_000))
def test_improbable_draws_fail_only_beyond_stock_and_chance(ours: int, theirs: int, num_tokens: int) -> None:
    mean = 2e-5 * num_tokens + theirs
    found = ImprobableDraws(num_candidate=ours, num_stock=theirs, p_value=float(poisson.sf(ours - 1, mean)))
    assert found.verdict is not Verdict.FAIL or ours > mean
    assert found.verdict is Verdict.PASS or ours > theirs


def test_draws_go_far_down_as_rarely_as_the_tail_says() -> None:
    """A million draws: a tail of at most a has probability a at most, and for fine distributions nearly that."""
    generator = np.random.default_rng(3)
    logits = torch.from_numpy(generator.normal(size=(1_000, 2_000)) * 3.0).float()
    law = logits.double().softmax(dim=-1)
    served = torch.multinomial(law, 1_000, replacement=True, generator=torch.Generator().manual_seed(4))
    before = torch.stack([row[order].cumsum(0)[order.argsort()] for row, order in ordered(law)])
    tails = 1.0 - (before - law).gather(1, served)
    share = float((tails <= 1e-3).double().mean())
    assert 0.8e-3 < share < 1.1e-3


def ordered(law: torch.Tensor) -> list[tuple[torch.Tensor, torch.Tensor]]:
    """Each row with its ids in descending probability."""
    return [(row, row.argsort(descending=True)) for row in law]


@pytest.mark.parametrize("name", ["lax_threshold", "ratio_of_best_children"])
def test_acceptance_rules_are_exact_without_their_fault(name: str) -> None:
    """Threshold 1 is the target's law; p / q of children drawn from q would be, of the best ones it is not."""
    logits = torch.randn(50, 20, generator=torch.Generator().manual_seed(0)) * 3
    factory = getattr(faults, name)
    arguments = {"looseness": 0.0} if name == "lax_threshold" else {}
    served = factory(context_of(tiny_requests(50, temperature=1.0)), **arguments)(None, logits).softmax(dim=-1)
    assert torch.allclose(served.sum(dim=-1), torch.ones(50), atol=1e-5)
    difference = float((served - logits.softmax(dim=-1)).abs().max())
    assert difference < 1e-6 if name == "lax_threshold" else difference > 0.05


def verdicts(runs: range, law: Law = exact, **sampling: Any) -> Counter[tuple[str, str]]:
    seen: Counter[tuple[str, str]] = Counter()
    for seed in runs:
        run = sampled_run(seed, law, num_requests=200, mean_tokens=64, **sampling)
        results: list[CheckResult] = [check.run(run) for check in (SamplingCheck(), SupportCheck())]
        seen.update((result.check, result.verdict.value) for result in results)
    return seen


def test_lossless_samplers_rarely_fail() -> None:
    """40 runs of the quick budget with a nucleus; more than one FAIL of either check has probability under 2 %."""
    seen = verdicts(range(NUM_RUNS), top_p=0.9)
    assert seen["sampling", "FAIL"] + seen["support", "FAIL"] <= 1
    assert seen["sampling", "PASS"] >= 0.85 * NUM_RUNS
    assert seen["support", "PASS"] >= 0.85 * NUM_RUNS


@pytest.mark.slow
@pytest.mark.parametrize("sampling", [{"temperature": 1.0}, {"temperature": 0.7, "top_p": 0.9}])
def test_error_rates(sampling: dict[str, Any], capsys: pytest.CaptureFixture[str]) -> None:
    """Lossless runs of the quick budget: FAIL at most 1 in 100 by each check, PASS in 90 at least."""
    seen = verdicts(range(1000, 1000 + NUM_SLOW_RUNS // 2), **sampling)
    with capsys.disabled():
        print(f"\n{NUM_SLOW_RUNS // 2} runs, {sampling}: {dict(seen)}")  # noqa: T201 - what this test is run for
    for check in ("sampling", "support"):
        assert seen[check, "FAIL"] <= 0.01 * NUM_SLOW_RUNS / 2 + 2
        assert seen[check, "PASS"] >= 0.9 * NUM_SLOW_RUNS / 2


def outside(run: CheckInput, share: float, nats: float, seed: int = 0) -> CheckInput:
    """The candidate with a share of its tokens that far outside the support."""
    scores: ForcedScores = run.candidate.scores
    hit = np.random.default_rng(seed).random(scores.num_tokens) < share
    gap = np.where(hit, nats, 0.0).astype(np.float32)
    return with_candidate(run, changed(run.candidate, support_gap=gap, in_support=~hit))


def test_tokens_outside_the_support_fail() -> None:
    run = sampled_run(5, top_p=0.9)
    check = SupportCheck()
    assert check.run(outside(run, 0.5, 0.05)).verdict is Verdict.PASS, "within delta of the cut"
    near = check.run(outside(run, 0.01, 0.2))
    assert near.verdict is Verdict.FAIL
    assert near.evidence["num_requests_far_outside"] == 0
    assert len(near.evidence["examples"]) == 20
    far = check.run(outside(run, 0.0008, 3.0))
    assert far.verdict is Verdict.FAIL
    assert far.evidence["num_requests_far_outside"] >= 8
    one = outside(run, 0.00005, 3.0, seed=3)
    assert check.run(one).verdict is Verdict.INCONCLUSIVE, "one place alone is no excess, and no PASS"


def test_an_unapplied_filter_fails_by_support() -> None:
    def unfiltered(logits: torch.Tensor, sampling: SamplingParams) -> torch.Tensor:
        return logits / sampling.temperature

    result = SupportCheck().run(sampled_run(6, unfiltered, top_p=0.9))
    assert result.verdict is Verdict.FAIL
    assert result.evidence["num_tokens_outside"] > 500
