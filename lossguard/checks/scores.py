"""The scores check: can the forced scores carry a verdict at all?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.clusters import request_of_tokens
from lossguard.checks.delta import is_scored
from lossguard.checks.table_text import plural
from lossguard.records import CheckResult, Request, Verdict

_LISTED = 20


class ScoresCheck:
    """Finite logits at every position, and scores that belong to the tokens that were served.

    Covered: NaN and infinite forced logits (those positions count as no mismatch elsewhere), scores of other tokens.
    Not covered: finite but wrong scores; the scorer's own tests are for that.
    """

    name: str = "scores"
    covers: str = "positions that the scorer could not score"
    does_not_cover: str = "scores that are finite but wrong"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Always: every other check reads these scores."""
        return True

    def run(self, given: CheckInput) -> CheckResult:
        """PASS if all positions of all arms are usable, else INCONCLUSIVE with the positions."""
        arms = (
            (given.candidate, given.requests),
            (given.stock, given.requests),
            (given.calibration, given.calibration_requests),
        )
        foreign = [text for arm, requests in arms if (text := _foreign(arm, requests)) is not None]
        if foreign:
            return CheckResult(
                check=self.name,
                verdict=Verdict.INCONCLUSIVE,
                summary="; ".join(foreign),
                evidence={"foreign": foreign},
            )
        places = [place for arm, requests in arms for place in _unusable(arm, requests)]
        return _result(given, places)


def _foreign(arm: Arm, requests: Sequence[Request]) -> str | None:
    """Why these scores are not those of the arm's replies; None if they are."""
    offsets = np.cumsum([0, *(len(output.ids) for output in arm.outputs)])
    if len(arm.outputs) != len(requests) or not np.array_equal(offsets, arm.scores.offsets):
        return f"{arm.name}: scores of {arm.scores.num_tokens:,} tokens for {int(offsets[-1]):,} served ones"
    served = np.fromiter((token for output in arm.outputs for token in output.ids), dtype=np.int64, count=offsets[-1])
    num_other = int((served != arm.scores.served_id).sum())
    return f"{arm.name}: {plural(num_other, 'score')} of other tokens than those served" if num_other else None


def _unusable(arm: Arm, requests: Sequence[Request]) -> list[dict[str, Any]]:
    tokens = np.flatnonzero(~is_scored(arm.scores))
    owner = request_of_tokens(arm.scores)[tokens]
    return [
        {
            "system": arm.name,
            "request_id": requests[int(index)].id,
            "position": int(token - arm.scores.offsets[index]),
            "served_id": int(arm.scores.served_id[token]),
        }
        for token, index in zip(tokens, owner, strict=True)
    ]


def _result(given: CheckInput, places: Sequence[dict[str, Any]]) -> CheckResult:
    sizes = [arm.scores.num_tokens for arm in (given.candidate, given.stock, given.calibration)]
    if not places:
        return CheckResult(
            check="scores",
            verdict=Verdict.PASS,
            summary=f"{sizes[0]:,} + {sizes[1]:,} tokens scored (calibration {sizes[2]:,}), all finite",
            evidence={"num_tokens": sum(sizes), "num_not_finite": 0},
        )
    return CheckResult(
        check="scores",
        verdict=Verdict.INCONCLUSIVE,
        summary=f"{plural(len(places), 'position')} with logits that are not finite",
        evidence={"num_tokens": sum(sizes), "num_not_finite": len(places), "positions": list(places[:_LISTED])},
        notes=tuple(
            f"{place['system']}, request {place['request_id']}, position {place['position']}" for place in places[:5]
        ),
    )
