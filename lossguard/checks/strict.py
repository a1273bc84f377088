"""The strict check, for deterministic stacks: not one token may differ from what stock serves at the same prefix."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lossguard.checks.base import Arm, CheckInput, Thresholds
from lossguard.checks.delta import delta_per_token, is_mismatch
from lossguard.checks.problems import all_greedy, blocked
from lossguard.records import CheckResult, Request, Verdict

_LISTED = 20
_NOTED = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class StrictMismatch:
    """The first token of one reply that stock does not serve there."""

    request_id: str
    position: int
    served_id: int | None  # None: the reply had ended
    stock_id: int | None
    gap_nats: float | None  # of the served token; None for a reply that had ended, or an id that does not exist


class StrictCheck:
    """Token-for-token equality with stock. Opt-in: ``strict`` of the plan.

    A strict mismatch is the first token of a reply that differs from stock's, or another end. For float32 engines
    two tokens that both lie within delta of the best one (the scorer's own noise) are one tie, and from there on a
    strict mismatch is a token with a gap over delta. Tokens that stock serves too are never one, whatever their gap.

    Covered: any change of any token, on stacks that compute a token alike in every batch.
    Not covered: stacks that do not, which this check fails without a fault.
    """

    name: str = "strict"
    covers: str = "any token that differs from stock's"
    does_not_cover: str = "stacks whose tokens depend on the batch: those fail without a fault"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy requests only."""
        return all_greedy(requests)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL on any strict mismatch, else PASS."""
        if (refusal := blocked(self.name, given)) is not None:
            return refusal
        found = strict_mismatches(given.candidate, given.stock, given.thresholds)
        own = strict_mismatches(given.recomposed, given.calibration, given.thresholds) if given.recomposed else []
        return _result(given, found, len(own))


def strict_mismatches(candidate: Arm, stock: Arm, thresholds: Thresholds) -> list[StrictMismatch]:
    """At most one per request, in request order; both arms answer the same requests."""
    comparison = _Comparison(
        candidate=candidate,
        stock=stock,
        allows_ties=thresholds.logit_dtype == "float32",
        candidate_is_tied=(candidate.scores.gap <= delta_per_token(candidate.scores, thresholds)).tolist(),
        stock_is_tied=(stock.scores.gap <= delta_per_token(stock.scores, thresholds)).tolist(),
        is_mismatch=is_mismatch(candidate.scores, thresholds).tolist(),
    )
    found = (comparison.first_of(index) for index in range(len(candidate.outputs)))
    return [mismatch for mismatch in found if mismatch is not None]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Comparison:
    candidate: Arm
    stock: Arm
    allows_ties: bool
    candidate_is_tied: Sequence[bool]  # by token
    stock_is_tied: Sequence[bool]
    is_mismatch: Sequence[bool]

    def first_of(self, index: int) -> StrictMismatch | None:
        """The strict mismatch of one request."""
        ours, theirs = self.candidate.outputs[index], self.stock.outputs[index]
        if ours.ids == theirs.ids and ours.finish_reason is theirs.finish_reason:
            return None
        shared = min(len(ours.ids), len(theirs.ids))
        position = next((at for at in range(shared) if ours.ids[at] != theirs.ids[at]), shared)
        if position == shared or not self._is_tie(index, position):
            return self._at(index, position)
        later = range(position, len(ours.ids))
        start = int(self.candidate.scores.offsets[index])
        wrong = next((at for at in later if self.is_mismatch[start + at]), None)
        return None if wrong is None else self._at(index, wrong, is_alone=True)

    def _is_tie(self, index: int, position: int) -> bool:
        places = (int(arm.scores.offsets[index]) + position for arm in (self.candidate, self.stock))
        return self.allows_ties and self.candidate_is_tied[next(places)] and self.stock_is_tied[next(places)]

    def _at(self, index: int, position: int, *, is_alone: bool = False) -> StrictMismatch:
        ours, theirs = self.candidate.outputs[index].ids, self.stock.outputs[index].ids
        gap = None
        if position < len(ours):
            gap = float(self.candidate.scores.gap[int(self.candidate.scores.offsets[index]) + position])
        return StrictMismatch(
            request_id=self.candidate.outputs[index].request_id,
            position=position,
            served_id=ours[position] if position < len(ours) else None,
            stock_id=theirs[position] if position < len(theirs) and not is_alone else None,
            gap_nats=None if gap is None or gap == float("inf") else gap,
        )


def _result(given: CheckInput, found: Sequence[StrictMismatch], num_own: int) -> CheckResult:
    num_requests = len(given.requests)
    notes = [_sentence(mismatch) for mismatch in found[:_NOTED]]
    if found and num_own:
        notes.insert(0, _not_for_this_stack(given, num_own))
    summary = f"{num_requests} replies equal to stock's"
    if found:
        summary = f"{len(found)} of {num_requests} replies have a token that stock does not serve there"
    return CheckResult(
        check="strict",
        verdict=Verdict.FAIL if found else Verdict.PASS,
        summary=summary,
        candidate=str(len(found)),
        limit="0",
        evidence={
            "num_requests": num_requests,
            "num_strict_mismatches": len(found),
            "num_stock_recomposed_strict_mismatches": num_own,
            "logit_dtype": given.thresholds.logit_dtype,
            "mismatches": [_json(mismatch) for mismatch in found[:_LISTED]],
        },
        notes=tuple(notes),
    )


def _not_for_this_stack(given: CheckInput, num_own: int) -> str:
    return (
        f"strict is not for this stack: stock itself, served at another batch composition, differs from itself in "
        f"{num_own} of {len(given.calibration_requests)} calibration replies ({given.thresholds.logit_dtype} logits); "
        "use batch-invariant kernels or float32, or judge without strict"
    )


def _sentence(mismatch: StrictMismatch) -> str:
    served = "the reply had ended" if mismatch.served_id is None else f"served {mismatch.served_id}"
    stock = "" if mismatch.stock_id is None else f", stock {mismatch.stock_id}"
    gap = "" if mismatch.gap_nats is None else f", gap {mismatch.gap_nats:.3g} nats"
    return f"request {mismatch.request_id}, position {mismatch.position:,}: {served}{stock}{gap}"


def _json(mismatch: StrictMismatch) -> dict[str, Any]:
    return {
        "request_id": mismatch.request_id,
        "position": mismatch.position,
        "served_id": mismatch.served_id,
        "stock_id": mismatch.stock_id,
        "gap_nats": mismatch.gap_nats,
    }
