"""Which family of faults fits a FAIL: identity of ids first, then place, then size, then ends; else unknown."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lossguard.checks.base import CheckInput
from lossguard.diagnosis.families import CAUSES, Family
from lossguard.diagnosis.identities import IdPattern, id_patterns
from lossguard.diagnosis.patterns import AMBIGUOUS_NATS, Pattern, best
from lossguard.diagnosis.places import place_patterns
from lossguard.diagnosis.remains import Conclusion, broken_ends, near_tie
from lossguard.diagnosis.suspects import Suspects, find_suspects
from lossguard.records import CheckResult, Diagnosis


@dataclass(frozen=True, slots=True, kw_only=True)
class _Found:
    """Everything that was seen, before one family is chosen."""

    suspects: Sequence[Suspects]
    places: list[Pattern]
    ids: Sequence[IdPattern]
    remains: Sequence[Conclusion]  # in order of preference


def diagnose(given: CheckInput, results: Sequence[CheckResult]) -> Diagnosis:
    """The likely family of the fault behind failed checks, or ``unknown`` with the reason.

    Pure, and no part of the verdict. A pattern is named only if chance explains it less than once in a thousand
    times, it holds at least 80 % of the errors, and errors are ten times rarer outside it. Ids come before places,
    for a bias stays one wherever it starts; two families of place that fit about equally well are ``unknown``.
    """
    suspects = find_suspects(given)
    found = _Found(
        suspects=suspects,
        places=[pattern for item in suspects for pattern in place_patterns(given, item)],
        ids=[pattern for item in suspects for pattern in id_patterns(given, item)],
        remains=[*near_tie(given, suspects, results), *broken_ends(results)],
    )
    return _by_identity(found) or _by_place(found) or _by_remains(found) or _unknown(found)


def _by_identity(found: _Found) -> Diagnosis | None:
    """Ends of replies, else ids that the errors share.

    One id alone in one place is the mark of that place (a broken row serves id 0, a loop its token), not of a bias.
    """
    place = best(found.places)
    named = place is not None and place.family is not Family.UNKNOWN
    ends = best([item.pattern for item in found.ids if item.pattern.family is Family.EOS])
    pattern = ends or best([item.pattern for item in found.ids if not (item.is_single and named)])
    if pattern is None:
        return None
    return _diagnosis(found, pattern, also=place)


def _by_place(found: _Found) -> Diagnosis | None:
    place = best(found.places)
    if place is None:
        return None
    rival = best([pattern for pattern in found.places if pattern.family is not place.family])
    if rival is not None and rival.score_nats > place.score_nats - AMBIGUOUS_NATS:
        reason = f"two patterns fit: {place.sentence}; {rival.sentence}"
        return _no_family(found, place.sentence, reason)
    if place.family is Family.UNKNOWN:
        return _no_family(found, place.sentence, "the errors share a place that is the mark of no family")
    one = best([item.pattern for item in found.ids if item.is_single])
    return _diagnosis(found, place, also=one)


def _by_remains(found: _Found) -> Diagnosis | None:
    if not found.remains:
        return None
    first = found.remains[0]
    return Diagnosis(
        family=first.family.value,
        evidence=first.sentence,
        reason=first.reason,
        causes=CAUSES[first.family],
        also=(),
        scores_nats=_scores(found),
    )


def _unknown(found: _Found) -> Diagnosis:
    if not found.suspects:
        return _no_family(found, "no kind of token is in excess of stock's", "there is nothing to find a pattern in")
    first = found.suspects[0]
    sentence = f"{int(first.tokens.sum()):,} {first.kind.value} without a common place or id"
    return _no_family(found, sentence, "no pattern holds 80 % of the errors with one beside it for ten in it")


def _no_family(found: _Found, sentence: str, reason: str) -> Diagnosis:
    return Diagnosis(
        family=Family.UNKNOWN.value, evidence=sentence, reason=reason, causes="", also=(), scores_nats=_scores(found)
    )


def _diagnosis(found: _Found, pattern: Pattern, also: Pattern | None = None) -> Diagnosis:
    more = () if also is None or also.family in (pattern.family, Family.UNKNOWN) else (also,)
    return Diagnosis(
        family=pattern.family.value,
        evidence="; ".join(item.sentence for item in (pattern, *more)),
        reason=(
            f"{pattern.coverage:.0%} of the errors share this, {pattern.exposure:.1%} would by chance: "
            f"score {pattern.score_nats:.1f} nats, 7 are needed"
        ),
        causes=CAUSES[pattern.family],
        also=tuple(item.family.value for item in more),
        scores_nats=_scores(found),
    )


def _scores(found: _Found) -> dict[str, float]:
    """The best score of each family among the patterns that hold; 0 where none does."""
    patterns = [*found.places, *(item.pattern for item in found.ids)]
    scores = {family.value: 0.0 for family in Family}
    for family, score in [
        *((pattern.family, pattern.score_nats) for pattern in patterns if pattern.holds),
        *((conclusion.family, conclusion.score_nats) for conclusion in found.remains),
    ]:
        scores[family.value] = max(scores[family.value], score)
    return scores
