"""Looking while it runs: a group-sequential test of the gain, and its continuation over re-submissions.

Covered: early promotion and re-submission, together at 5 %. The deviation of a pair is the larger of two 75 % upper
bounds: of the A/A profile's rms and of what this candidate's pairs show. With the profile alone a candidate with four
times stock's launch noise is promoted wrongly in 13 to 19 of 100 campaigns, and the fixed-sample bound does not stop
it, as that is looked at again and again too. Asked for besides: the fixed-sample bound, 4 pairs, the guards.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from scipy import special

from lossguard.errors import UsageError
from lossguard.timing.base import BoolArray, FloatArray, IntArray
from lossguard.timing.boundary import obrien_fleming_constant
from lossguard.timing.confidence_sequence import mixture_radius
from lossguard.timing.launch_variance import MINIMUM_PAIRS
from lossguard.timing.noise import SEQUENTIAL_CONFIDENCE, upper_factor


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialPlan:
    """Which looks are taken and how the error is shared between them and what may come after them."""

    looks: tuple[int, ...]  # pairs in total, increasing, at least 4
    alpha: float = 0.05
    pooling_share: float = 0.2  # of alpha, kept for pairs after the last look; 0 ends the test there
    futility_confidence: float = 0.90
    constant: float = field(init=False)  # C of the boundary, computed for these looks

    def __post_init__(self) -> None:
        rising = all(first < second for first, second in zip(self.looks, self.looks[1:], strict=False))
        fits = bool(self.looks) and rising and self.looks[0] >= MINIMUM_PAIRS
        if not (fits and 0 < self.alpha < 0.5 and 0 <= self.pooling_share < 1 and 0.5 < self.futility_confidence < 1):
            raise UsageError(
                f"sequential plan with looks {self.looks}, alpha {self.alpha}, pooling share {self.pooling_share}, "
                f"futility at {self.futility_confidence}",
                why="the boundary is computed for looks that are fixed beforehand; others would break its 5 %",
                fix=f"give increasing numbers of pairs from {MINIMUM_PAIRS} on, alpha under 0.5 and a share under 1",
                code="LG1055",
            )
        object.__setattr__(self, "constant", obrien_fleming_constant(self.looks, self.looks_alpha))

    @property
    def looks_alpha(self) -> float:
        """The part of the error that the looks may spend."""
        return self.alpha * (1 - self.pooling_share)

    @property
    def pooling_alpha(self) -> float:
        """The part that is left for pairs after the last look."""
        return self.alpha * self.pooling_share


@dataclass(frozen=True, slots=True, kw_only=True)
class SequentialArrays:
    """What each look says; arrays are [..., looks taken]."""

    pairs: IntArray  # [looks taken] pairs in total; planned looks, then every pair after the last
    deviation: FloatArray  # standard deviation of a pair that the look goes by
    statistic: FloatArray  # sum of pair means over the threshold, in standard errors
    boundary: FloatArray  # [looks taken] what the statistic must exceed
    crossed: BoolArray
    futile: BoolArray


def taken_looks(plan: SequentialPlan, num_pairs: int) -> IntArray:
    """Numbers of pairs at which a decision falls, up to ``num_pairs``."""
    planned = [look for look in plan.looks if look <= num_pairs]
    later = range(plan.looks[-1] + 1, num_pairs + 1) if plan.pooling_share > 0 else ()
    return np.asarray([*planned, *later], dtype=np.int64)


def boundaries(plan: SequentialPlan, looks: IntArray) -> FloatArray:
    """What the standardised sum must exceed at each look: O'Brien-Fleming, then the confidence sequence."""
    planned = plan.constant * np.sqrt(plan.looks[-1] / looks)
    if plan.pooling_share == 0:
        return planned
    later = mixture_radius(looks, 1.0, plan.pooling_alpha) * np.sqrt(looks)
    return np.where(looks <= plan.looks[-1], planned, later)


def sequential_arrays(
    pair_means: FloatArray, log_threshold: FloatArray, deviation: FloatArray, plan: SequentialPlan
) -> SequentialArrays:
    """Statistics at every look from pair means [..., M] in the order in which they were measured.

    ``pair_means`` holds every pair ever measured of this candidate against this stock: a re-submission continues the
    same test. ``deviation`` [...] is stock's standard deviation of one pair (``noise.sequential_noise``). Futility
    (upper 90 % bound under the threshold) binds nobody, so that it cannot raise the error.
    """
    looks = taken_looks(plan, pair_means.shape[-1])
    over = pair_means - log_threshold[..., None]
    sums = over.cumsum(axis=-1)[..., looks - 1]
    used = np.maximum(deviation[..., None], observed_upper(over, looks))
    with np.errstate(divide="ignore", invalid="ignore"):
        statistic = sums / (used * np.sqrt(looks))
    limit = boundaries(plan, looks)
    return SequentialArrays(
        pairs=looks,
        deviation=used,
        statistic=statistic,
        boundary=limit,
        crossed=statistic > limit,
        futile=statistic + special.ndtri(plan.futility_confidence) < 0,
    )


def observed_upper(values: FloatArray, looks: IntArray) -> FloatArray:
    """75 % upper bound of the standard deviation of the first m values, for each look: [..., M] -> [..., looks]."""
    centred = values - values.mean(axis=-1, keepdims=True)
    sums = centred.cumsum(axis=-1)[..., looks - 1]
    squares = np.square(centred).cumsum(axis=-1)[..., looks - 1]
    variance = np.maximum(squares - sums**2 / looks, 0.0) / (looks - 1)
    factors = np.array([upper_factor(int(look) - 1, SEQUENTIAL_CONFIDENCE) for look in looks])
    return np.asarray(factors * np.sqrt(variance))
