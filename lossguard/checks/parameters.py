"""The parameters check: did penalties, biases, bad words and grammars act, at every token?"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lossguard.checks.base import Arm, BoolArray, CheckInput
from lossguard.checks.clusters import request_of_tokens
from lossguard.checks.delta import is_scored
from lossguard.checks.events import FAIL_ALPHA, excess_p
from lossguard.checks.problems import blocked, inconclusive
from lossguard.checks.table_text import plural
from lossguard.records import CheckResult, Request, Verdict

_LISTED = 20
_INSTALL_GRAMMAR = "pip install 'lossguard[grammar]'"
_CONVENTION = "is [scorer] convention that of the engine?"


class ParametersCheck:
    """Served tokens under the target's logits with the request's parameters applied, and without.

    A token breaks a parameter where it cannot be served under it (bad word, grammar), or where its gap with the
    parameters exceeds its gap without them by more than the event threshold: it is what a server serves that applies
    them not, or in part. The scorer replays the parameters along the served prefix.

    Covered: parameters that are never read, count too little, or leave out some steps.
    Not covered: parameters too weak to move any token by the event threshold (the rate check sees those that move
    more tokens than stock's); minimum lengths (the stop check).
    """

    name: str = "parameters"
    covers: str = "penalties, biases, bad words and grammars, replayed at every token"
    does_not_cover: str = "effects under the large-margin threshold"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Requests of which one asks for such a parameter, greedy or sampled."""
        return any(asked_parameters(request) for request in requests)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL where the candidate breaks a parameter more often than stock does; nothing replayed is no PASS."""
        if (reason := blocked(self.name, given)) is not None:
            return reason
        for arm in (given.candidate, given.stock):
            if arm.scores.replayed is None:
                return inconclusive(self.name, f"the scorer does not replay {_names(given.requests)}")
        ours, theirs = (_look_at(given, arm) for arm in (given.candidate, given.stock))
        return _result(given, ours, theirs)


def asked_parameters(request: Request) -> tuple[str, ...]:
    """Names of the request's parameters that this check judges."""
    return tuple(name for name in request.sampling.replayed_parameters() if name != "min_tokens")


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmParameters:
    """What one arm's tokens say about the parameters."""

    broken: dict[str, str]  # request -> its first token that breaks one
    unknown: dict[str, int]  # request -> position from which nothing was replayed, where no token before breaks one
    decided: frozenset[tuple[str, ...]]  # sets of parameters that changed the target's choice somewhere


def _look_at(given: CheckInput, arm: Arm) -> ArmParameters:
    scores = arm.scores
    if scores.plain_gap is None or scores.plain_best_id is None or scores.replayed is None:
        raise AssertionError(f"{arm.name} has no replayed columns")
    asked = [asked_parameters(request) for request in given.requests]
    concerned = np.array([bool(names) for names in asked])[request_of_tokens(scores)]
    usable = concerned & is_scored(scores)
    excess = np.where(np.isfinite(scores.plain_gap), scores.gap, 0.0) - np.where(
        np.isfinite(scores.plain_gap), scores.plain_gap, 0.0
    )
    broken = usable & scores.replayed & (excess > given.thresholds.event_nats)
    moved = usable & scores.replayed & (scores.plain_best_id != scores.best_id)
    owners = request_of_tokens(scores)
    first_broken = _first(broken, arm)
    first_unknown = _first(usable & ~scores.replayed, arm)
    return ArmParameters(
        broken={
            given.requests[index].id: _broken_text(arm, index, at, asked[index]) for index, at in first_broken.items()
        },
        unknown={
            given.requests[index].id: at - int(scores.offsets[index])
            for index, at in first_unknown.items()
            if first_broken.get(index, at) >= at
        },
        decided=frozenset(asked[index] for index in np.unique(owners[moved]).tolist()),
    )


def _first(flags: BoolArray, arm: Arm) -> dict[int, int]:
    """Request index -> place of its first flagged token among all of the arm's."""
    tokens = np.flatnonzero(flags)
    owners = request_of_tokens(arm.scores)[tokens]
    indices, places = np.unique(owners, return_index=True)
    return dict(zip(indices.tolist(), tokens[places].tolist(), strict=True))


def _broken_text(arm: Arm, index: int, at: int, asked: tuple[str, ...]) -> str:
    scores, position = arm.scores, at - int(arm.scores.offsets[index])
    where = f"position {position}: token {scores.served_id[at]}"
    if np.isinf(scores.gap[at]):
        return f"{where} cannot be served under {', '.join(asked)}"
    plain = float(scores.plain_gap[at]) if scores.plain_gap is not None else 0.0
    return f"{where} is {scores.gap[at]:.2f} nats under the best with {', '.join(asked)}, {plain:.2f} without"


def _names(requests: Sequence[Request]) -> str:
    return ", ".join(sorted({name for request in requests for name in asked_parameters(request)}))


def _result(given: CheckInput, ours: ArmParameters, theirs: ArmParameters) -> CheckResult:
    verdict, summary = _verdict(given, ours, theirs)
    asking = sum(bool(asked_parameters(request)) for request in given.requests)
    evidence: dict[str, Any] = {
        "parameters": _names(given.requests),
        "num_asking_requests": asking,
        "num_violating_requests": len(ours.broken),
        "num_stock_violating_requests": len(theirs.broken),
        "num_requests_not_replayed": len(ours.unknown),
        "excess_threshold_nats": given.thresholds.event_nats,
        "examples": [{"request_id": key, "detail": text} for key, text in list(ours.broken.items())[:_LISTED]],
    }
    return CheckResult(
        check="parameters",
        verdict=verdict,
        summary=summary,
        candidate=str(len(ours.broken)),
        stock=str(len(theirs.broken)),
        limit="0",
        evidence=evidence,
        notes=tuple(f"request {key}: {text}" for key, text in list(ours.broken.items())[:5]),
    )


def _verdict(given: CheckInput, ours: ArmParameters, theirs: ArmParameters) -> tuple[Verdict, str]:
    numbers = len(ours.broken), len(theirs.broken)
    if numbers[0]:
        found = f"{_replies(numbers[0])} against {_names(given.requests)} (stock {numbers[1]})"
        if not numbers[1] or excess_p(*numbers, len(given.requests)) < FAIL_ALPHA:
            return Verdict.FAIL, found
        return Verdict.INCONCLUSIVE, f"{found}: {_CONVENTION}"
    unknown = {**theirs.unknown, **ours.unknown}
    if unknown:
        request_id, position = next(iter(unknown.items()))
        hint = f"; {_INSTALL_GRAMMAR}" if position == 0 and _is_grammar(given.requests, request_id) else ""
        where = f"{request_id} from position {position} on"
        return Verdict.INCONCLUSIVE, f"{_replies(len(unknown))} could not be replayed: {where}{hint}"
    if numbers[1]:
        return Verdict.INCONCLUSIVE, f"stock breaks them in {plural(numbers[1], 'request')}: {_CONVENTION}"
    idle = {asked_parameters(request) for request in given.requests} - {(), *ours.decided, *theirs.decided}
    if idle:
        listing = "; ".join(sorted(", ".join(names) for names in idle))
        return Verdict.INCONCLUSIVE, f"never changed the target's choice, so nothing was tested: {listing}"
    return Verdict.PASS, f"{_names(given.requests)} at every token"


def _replies(number: int) -> str:
    return plural(number, "reply")


def _is_grammar(requests: Sequence[Request], request_id: str) -> bool:
    return any(request.id == request_id and request.sampling.grammar is not None for request in requests)
