"""Strata large enough to be judged: tiny ones are judged together, none is left out."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from lossguard.timing.base import FloatArray

MINIMUM_STRATUM_REQUESTS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Strata:
    """The strata that are judged."""

    names: tuple[str, ...]  # [K]
    membership: FloatArray  # [N, K] 0 or 1, one 1 in each row
    reason: str

    @property
    def sizes(self) -> tuple[int, ...]:
        """Requests of each stratum."""
        return tuple(int(size) for size in self.membership.sum(axis=0))


def merge_strata(strata: Sequence[str]) -> Strata:
    """Put strata with fewer than 8 requests into one; if that stays under 8, the smallest other stratum joins it.

    A bound from two requests has one degree of freedom and can never breach: a stratum that is too small to be judged
    would be a place to hide a loss. Judged together with its like it is not.
    """
    counts = Counter(strata)
    ordered = sorted(counts, key=lambda name: (counts[name], name))
    small = [name for name in ordered if counts[name] < MINIMUM_STRATUM_REQUESTS]
    large = ordered[len(small) :]
    while small and large and sum(counts[name] for name in small) < MINIMUM_STRATUM_REQUESTS:
        small.append(large.pop(0))
    if len(small) < 2:
        names, reason = tuple(sorted(counts)), f"{len(counts)} strata as declared"
        index = {name: names.index(name) for name in names}
    else:
        names = (*sorted(large), f"together: {', '.join(sorted(small))}")
        reason = f"{len(small)} strata were judged together: one had under {MINIMUM_STRATUM_REQUESTS} requests"
        index = {name: names.index(name) if name in large else len(names) - 1 for name in counts}
    membership = np.zeros((len(strata), len(names)))
    membership[np.arange(len(strata)), [index[name] for name in strata]] = 1.0
    return Strata(names=names, membership=membership, reason=reason)
