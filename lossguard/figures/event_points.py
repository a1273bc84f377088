"""Where events lie: position and gap of each, with what the audit said of it."""

from __future__ import annotations

from typing import Any

import numpy as np

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.events import event_positions

MAX_POINTS = 10_000
LARGEST_SHOWN_NATS = 100.0
"""Larger gaps, that of an id which does not exist among them, are drawn here."""
_STATUS = {True: "e", False: "u", None: "n"}


def event_points(given: CheckInput) -> dict[str, Any]:
    """JSON: columns per arm; ``status`` has a letter per point: e explained, u unexplained, n not audited."""
    return {"candidate": _points(given, given.candidate), "stock": _points(given, given.stock)}


def _points(given: CheckInput, arm: Arm) -> dict[str, Any]:
    """All events, or the first ``MAX_POINTS`` with the audited ones before the others."""
    audited = {(event.request_id, event.position): event.explained for event in arm.audit}
    rows = [
        (audited.get((found.request_id, position)), found.request_index, position, gap)
        for found in event_positions(arm, given.thresholds)
        for position, gap in zip(found.positions, found.gaps_nats, strict=True)
    ]
    shown = sorted(sorted(rows, key=lambda row: row[0] is None)[:MAX_POINTS], key=lambda row: (row[1], row[2]))
    gaps = np.minimum([row[3] for row in shown], LARGEST_SHOWN_NATS)
    return {
        "num_events": len(rows),
        "status": "".join(_STATUS[row[0]] for row in shown),
        "request_index": [row[1] for row in shown],
        "position": [row[2] for row in shown],
        "gap_nats": [round(float(gap), 3) for gap in gaps],
    }
