"""What is left when no ids and no place stand out: choices among near-ties, and broken ends of replies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lossguard.checks.base import CheckInput
from lossguard.checks.delta import delta_per_token
from lossguard.diagnosis.families import Family
from lossguard.diagnosis.patterns import MINIMUM_SCORE_NATS
from lossguard.diagnosis.suspects import Kind, Suspects
from lossguard.records import CheckResult, Verdict

SMALL_GAP_DELTAS = 4.0
SMALL_SHARE = 0.95
END_RULES = frozenset({"after-stop", "empty", "length", "max_tokens", "min_tokens", "stop", "stop-reason"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Conclusion:
    """A family that the checks' own results point to."""

    family: Family
    sentence: str
    reason: str
    score_nats: float


def near_tie(given: CheckInput, suspects: Sequence[Suspects], results: Sequence[CheckResult]) -> list[Conclusion]:
    """Near-tie: the check of that name fails, no large-margin token is in excess, and the mismatches are small."""
    failed = {result.check: result for result in results if result.verdict is Verdict.FAIL}
    by_kind = {item.kind: item for item in suspects}
    ties = by_kind.get(Kind.TIES)
    if "near-tie" not in failed or ties is None or Kind.EVENTS in by_kind:
        return []
    share = _small_share(given, by_kind.get(Kind.MISMATCHES))
    if share < SMALL_SHARE:
        return []
    number = int(ties.tokens.sum())
    by_habit = number - ties.num_excess
    sentence = f"{number:,} lower-ranked picks inside ties where stock's habits give {by_habit:,.0f}"
    if Kind.MISMATCHES in by_kind:
        sentence += f", and {share:.0%} of the mismatches are within {SMALL_GAP_DELTAS:g} delta"
    return [
        Conclusion(
            family=Family.NEAR_TIE,
            sentence=sentence,
            reason="near-tie fails, no large-margin token is in excess, and nearly all mismatches are small",
            score_nats=ties.effective / 2,
        )
    ]


def _small_share(given: CheckInput, mismatches: Suspects | None) -> float:
    if mismatches is None:
        return 1.0
    scores = given.candidate.scores
    small = scores.gap <= SMALL_GAP_DELTAS * delta_per_token(scores, given.thresholds)
    return float(small[mismatches.tokens].mean())


def broken_ends(results: Sequence[CheckResult]) -> list[Conclusion]:
    """EOS: replies break rules about their ends, and no other rule is broken."""
    broken: dict[str, int] = {}
    for result in results:
        if result.check == "structure" and result.verdict is Verdict.FAIL:
            broken = dict(result.evidence.get("violations_by_rule", {}))
    if not broken or not END_RULES.issuperset(broken):
        return []
    rules = ", ".join(f"{rule} {number}" for rule, number in sorted(broken.items()))
    return [
        Conclusion(
            family=Family.EOS,
            sentence=f"replies that end wrongly ({rules})",
            reason="only rules about the ends of replies are broken, and no pattern of tokens holds",
            score_nats=MINIMUM_SCORE_NATS,
        )
    ]
