"""Which replies and positions a fault hits: drawn from a seed and the request, the same in every process."""

from __future__ import annotations

import hashlib

from lossguard.records import Request


def draw(below: int, *parts: object) -> int:
    """A number in ``range(below)`` that depends on nothing but ``parts``."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below


def is_hit(request: Request, *, every: int, seed: int) -> bool:
    """Whether a request is among the one in ``every`` that a fault hits."""
    return draw(every, "request", seed, request.id, request.repeat_id) == 0
