from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from scipy.optimize import minimize

from lossguard.checks.base import Arm, CheckInput
from lossguard.records import ForcedScores
from lossguard.selftest.rivals import exact_match, hard_bound, least_kl, match_rate, mean_kl
from tests.checks.conftest import LosslessRun
from tests.checks.conftest import lossless as lossless


def with_gaps(given: CheckInput, changes: dict[int, float]) -> CheckInput:
    """Candidate = stock with these tokens' gaps set, and every other gap 0."""
    scores = given.stock.scores
    gap = np.zeros(scores.num_tokens, dtype=np.float32)
    for token, value in changes.items():
        gap[token] = value
    columns = {name: getattr(scores, name) for name in ForcedScores.__dataclass_fields__}
    changed = ForcedScores(**{**columns, "gap": gap, "rank": (gap > 0).astype(np.int32), "logprob": -gap})
    return replace(given, candidate=Arm(name="candidate", outputs=given.stock.outputs, scores=changed))


def test_exact_match_sees_one_token(lossless: LosslessRun) -> None:
    same = replace(lossless.given, candidate=lossless.given.stock)
    assert not exact_match(same)
    assert exact_match(lossless.given)


@pytest.mark.parametrize(
    ("changes", "is_red"),
    [({3: 0.25}, False), ({3: 0.26}, True), ({1: 0.2, 2: 0.2}, False), ({1: 0.2, 2: 0.2, 3: 0.2}, True)],
)
def test_the_hard_bound_is_per_token_and_per_reply(
    lossless: LosslessRun, changes: dict[int, float], *, is_red: bool
) -> None:
    assert hard_bound(with_gaps(lossless.given, changes)) is is_red


@pytest.mark.parametrize(("share", "is_red"), [(0.02, False), (0.04, True)])
def test_the_match_rate_is_97_percent(lossless: LosslessRun, share: float, *, is_red: bool) -> None:
    number = round(share * lossless.given.stock.scores.num_tokens)
    assert match_rate(with_gaps(lossless.given, dict.fromkeys(range(number), 0.01))) is is_red


def test_mean_kl_sees_large_gaps_only(lossless: LosslessRun) -> None:
    number = lossless.given.stock.scores.num_tokens
    assert not mean_kl(with_gaps(lossless.given, dict.fromkeys(range(number), 0.1)))
    assert mean_kl(with_gaps(lossless.given, dict.fromkeys(range(number // 2), 6.0)))


def test_least_kl_is_the_minimum(lossless: LosslessRun) -> None:
    """Against numerical minimisation over three tokens."""
    p = np.array([0.6, 0.25, 0.15])

    def divergence(logits: np.ndarray) -> float:
        q = np.exp(logits) / np.exp(logits).sum()
        return float((q * np.log(q / p)).sum())

    found = minimize(divergence, np.log([0.4, 0.45, 0.15]), constraints={"type": "ineq", "fun": lambda x: x[1] - x[0]})
    scores = lossless.given.stock.scores
    gap = np.full(scores.num_tokens, np.log(p[0] / p[1]), dtype=np.float32)
    columns = {name: getattr(scores, name) for name in ForcedScores.__dataclass_fields__}
    changed = ForcedScores(**{**columns, "gap": gap, "logprob": np.full_like(gap, np.log(p[1]))})
    assert least_kl(changed)[0] == pytest.approx(found.fun, abs=1e-5)


def test_least_kl_is_finite_for_ids_that_do_not_exist(lossless: LosslessRun) -> None:
    given = with_gaps(lossless.given, {0: float("inf")})
    assert np.isfinite(least_kl(given.candidate.scores)).all()
    assert least_kl(given.candidate.scores)[0] > 1
