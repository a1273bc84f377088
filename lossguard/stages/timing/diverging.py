"""Are the replies that were timed the replies that were judged? A candidate could answer junk only when it is timed.

Timed replies are not scored, but their ids are compared with stock's. Covered: a share of replies that differ from
stock's far beyond what stock differs from itself, or beyond what the same run's lossless claim has judged. Not covered:
other tokens in no more replies than that.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from scipy import stats

from lossguard.records import ServedOutput
from lossguard.stages.timing.pair_times import MeasuredPair

CHANCE = 0.001  # of calling two equal shares different


@dataclass(frozen=True, slots=True, kw_only=True)
class Diverging:
    """Replies that differ between two arms, of all that were compared."""

    number: int
    compared: int

    def __str__(self) -> str:
        return f"{self.number} of {self.compared}"


def diverging_of(pairs: Iterable[MeasuredPair]) -> Diverging:
    """Of swap pairs."""
    known = list(pairs)
    compared = sum(pair.seconds[:, 0].size for pair in known)
    return Diverging(number=sum(pair.num_diverging for pair in known), compared=compared)


def diverging_outputs(stock: Sequence[ServedOutput], candidate: Sequence[ServedOutput], num_tokens: int) -> Diverging:
    """Of served replies, over as many tokens as timed replies have."""
    ids = {output.request_id: output.ids[:num_tokens] for output in stock}
    both = [output for output in candidate if output.request_id in ids]
    number = sum(output.ids[:num_tokens] != ids[output.request_id] for output in both)
    return Diverging(number=number, compared=len(both))


def is_far_above(found: Diverging, reference: Diverging) -> bool:
    """Whether a share is larger than another beyond chance (Fisher's exact test, one-sided)."""
    table = [
        [found.number, found.compared - found.number],
        [reference.number, reference.compared - reference.number],
    ]
    return bool(stats.fisher_exact(table, alternative="greater").pvalue < CHANCE)


def unjudged_replies(found: Diverging, itself: Diverging | None, judged: Diverging | None) -> str | None:
    """Why the timed replies may be others than lossless ones; None if nothing says so.

    ``itself``: stock against stock. ``judged``: candidate against stock in a lossless claim of this run that passed.
    """
    if any(known is not None and not is_far_above(found, known) for known in (itself, judged)):
        return None
    told = (
        f"timed replies differ from stock's in {found} requests, stock's from itself in {itself or 'an unknown number'}"
    )
    if judged is not None:
        return f"{told}, those that were judged lossless in {judged}: what was timed is not what was judged"
    return f"{told}: whether they are lossless is not shown; judge them (lossguard check with a [timing] table)"
