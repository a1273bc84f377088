"""Which replies and positions a fault hits: drawn from a seed and the request, the same in every process."""

from __future__ import annotations

import hashlib
import re

from lossguard.records import Request

NUMBERED = re.compile(r"(?P<set>.*?)(?P<number>\d+)(#\d+)?")


def draw(below: int, *parts: object) -> int:
    """A number in ``range(below)`` that depends on nothing but ``parts``."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below


def is_hit(request: Request, *, every: int, seed: int) -> bool:
    """Whether a request is among the one in ``every`` that a fault hits.

    Requests that are numbered (``math-017``) are hit at even distances within their set, from a start drawn by the
    seed, so that a run of 240 has 12 hits at one in 20 rather than anything from 5 to 20; others are drawn singly.
    """
    numbered = NUMBERED.fullmatch(request.id)
    if numbered is None:
        return draw(every, "request", seed, request.id, request.repeat_id) == 0
    start = draw(every, "start", seed, numbered["set"], request.repeat_id)
    return (int(numbered["number"]) + start) % every == 0
