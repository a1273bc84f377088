"""One position for people: what was served, what else the target would have said, what stands before it."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from lossguard.checks.base import Arm

NUM_ALTERNATIVES = 5
CONTEXT_TOKENS = 24  # of the reply, before the position


@dataclass(frozen=True, slots=True, kw_only=True)
class Reader:
    """Reads positions of a candidate's replies; ``decode`` turns token ids into text."""

    arm: Arm
    stock: Arm
    decode: Callable[..., str]

    def example(self, index: int, position: int, kind: str) -> dict[str, Any]:
        """JSON of one position of the reply to request ``index``; an infinite gap is null."""
        scores, at = self.arm.scores, int(self.arm.scores.offsets[index]) + position
        gap = float(scores.gap[at])
        served, best = int(scores.served_id[at]), int(scores.best_id[at])
        return {
            "kind": kind,
            "request_id": self.arm.outputs[index].request_id,
            "position": position,
            "served_id": served,
            "served_text": self.decode(served),
            "best_id": best,
            "best_text": self.decode(best),
            "gap_nats": gap if math.isfinite(gap) else None,
            "context_text": self._context(index, position),
            "alternatives": self._alternatives(at),
            **self._stock_token(index, position),
        }

    def _context(self, index: int, position: int) -> str:
        ids = self.arm.outputs[index].ids[max(0, position - CONTEXT_TOKENS) : position]
        return self.decode(*ids) if ids else ""

    def _alternatives(self, at: int) -> list[dict[str, Any]]:
        """The scorer's best tokens there, with how far each lies under the best one; none where it saw no logits."""
        scores = self.arm.scores
        ids, logits = scores.top_ids[at].tolist(), scores.top_logits[at].tolist()
        usable = bool(scores.finite[at]) and all(math.isfinite(value) for value in logits)
        return [
            {"id": token, "text": self.decode(token), "gap_nats": round(logits[0] - logit, 4)}
            for token, logit in zip(ids[:NUM_ALTERNATIVES], logits, strict=False)
            if usable
        ]

    def _stock_token(self, index: int, position: int) -> dict[str, Any]:
        """What stock served after the same tokens; nothing where its reply had parted before, or ended."""
        ours, theirs = self.arm.outputs[index].ids, self.stock.outputs[index].ids
        if position >= len(theirs) or ours[:position] != theirs[:position]:
            return {}
        return {"stock_id": theirs[position], "stock_text": self.decode(theirs[position])}
