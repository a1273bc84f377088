"""Improbable draws: sampled tokens so far down their own distribution that draws from it hardly ever go there.

Of a token y let the tail be the probability, under the target and the request's own sampling, of y and all tokens that
come after it in descending probability. Draws from the target have a tail of at most a with probability at most a,
whatever was served before. So the requests that hold a token with a tail of at most a number at most a per drawn token
in the mean. Means over all tokens cannot see one wrong token in every twentieth reply; this can.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from scipy.stats import poisson

from lossguard.checks.base import BoolArray
from lossguard.checks.clusters import request_sums
from lossguard.checks.drawn_tokens import DrawnTokens
from lossguard.records import Verdict

TAIL: Final = 1e-5
"""Single precision leaves an error of about 3e-7 in it."""
_ROUNDING: Final = 2.0
"""Served logits that miss the target's by 0.69 nats make a tail twice as probable."""
FAIL_ALPHA, UNDECIDED_ALPHA = 0.001, 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ImprobableDraws:
    """Requests of each arm with at least one improbable draw."""

    num_candidate: int
    num_stock: int
    p_value: float
    """Of so many or more in the candidate: Poisson with stock's number and twice what the tail allows as its mean."""

    @property
    def verdict(self) -> Verdict:
        """FAIL for what lossless draws do once in 1,000 runs at most, INCONCLUSIVE for once in 20."""
        if self.num_candidate <= self.num_stock or self.p_value >= UNDECIDED_ALPHA:
            return Verdict.PASS
        return Verdict.FAIL if self.p_value < FAIL_ALPHA else Verdict.INCONCLUSIVE


def compare_improbable(candidate: DrawnTokens, stock: DrawnTokens) -> ImprobableDraws:
    """Counts of both arms, and how probable the candidate's is."""
    ours, theirs = (_num_requests(arm) for arm in (candidate, stock))
    mean = _ROUNDING * TAIL * candidate.num_drawn + theirs
    return ImprobableDraws(num_candidate=ours, num_stock=theirs, p_value=float(poisson.sf(ours - 1, mean)))


def improbable(tokens: DrawnTokens) -> BoolArray:
    """[T] drawn tokens with a tail of at most ``TAIL``."""
    scores = tokens.scores
    assert scores.pit_low is not None, "sampled columns exist together"
    found: BoolArray = tokens.is_drawn & (1.0 - scores.pit_low.astype("float64") <= TAIL)
    return found


def _num_requests(tokens: DrawnTokens) -> int:
    return int((request_sums(improbable(tokens), tokens.scores) > 0).sum())
