"""Numbers as the table of a report shows them, and as JSON takes them."""

from __future__ import annotations

import math


def percent(share: float) -> str:
    """``0.65 %``."""
    return f"{100 * share:.2f} %" if math.isfinite(share) else "unknown"


def points(difference: float) -> str:
    """``+0.16 pt``: a difference of shares in percentage points."""
    return f"{100 * difference:+.2f} pt" if math.isfinite(difference) else "unknown"


def nats_per_token(value: float) -> str:
    """``+0.00004 nats/token``."""
    if not math.isfinite(value):
        return "unknown"
    return f"{value:+.5f} nats/token" if abs(value) >= 1e-5 or value == 0 else f"{value:+.1e} nats/token"


def finite(value: float) -> float | None:
    """The value as a plain float, None where it is infinite or NaN: evidence is JSON."""
    number = float(value)
    return number if math.isfinite(number) else None


def plural(number: int, noun: str) -> str:
    """``1 request``, ``2 requests``."""
    if number == 1:
        return f"1 {noun}"
    return f"{number:,} {noun[:-1]}ies" if noun.endswith("ply") else f"{number:,} {noun}s"
