"""Is it worth measuring further? From one pair on, and never a promotion."""

from __future__ import annotations

from dataclasses import dataclass

from lossguard.timing.base import Estimate, NoiseProfile, PairTimes
from lossguard.timing.estimator import estimate
from lossguard.timing.noise import profile_problem


@dataclass(frozen=True, slots=True, kw_only=True)
class Screening:
    """Whether to go on, with the reason."""

    go_on: bool
    reason: str
    estimate: Estimate | None


def screen(times: PairTimes, noise: NoiseProfile | None) -> Screening:
    """Stop a candidate whose upper 95 % bound is under 0; whatever cannot be judged goes on.

    Raises
    ------
    UsageError
        LG1050, LG1051, LG1053.
    """
    problem = profile_problem(noise)
    if problem or noise is None:
        return Screening(go_on=True, reason=f"not screened: {problem}", estimate=None)
    found = estimate(times, noise)
    if found.log_upper < 0:
        reason = f"slower: the gain is at most {100 * found.gain_upper:+.2f} %"
        return Screening(go_on=False, reason=reason, estimate=found)
    return Screening(go_on=True, reason=f"the gain may be up to {100 * found.gain_upper:+.2f} %", estimate=found)
