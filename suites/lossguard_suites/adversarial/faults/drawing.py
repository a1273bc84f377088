"""Which replies and positions a fault hits: drawn from a seed and the request, the same in every process."""

from __future__ import annotations

import hashlib
import math
import re

from lossguard.records import Request

NUMBERED = re.compile(r"(?P<set>.*?)(?P<number>\d+)(#\d+)?")


def draw(below: int, *parts: object) -> int:
    """A number in ``range(below)`` that depends on nothing but ``parts``."""
    digest = hashlib.blake2b(repr(parts).encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") % below


def chance(*parts: object) -> float:
    """A number in [0, 1) that depends on nothing but ``parts``."""
    return draw(1 << 53, *parts) / (1 << 53)


def is_hit(request: Request, *, every: int, seed: int) -> bool:
    """Whether a request is among the one in ``every`` that a fault hits; 0 hits none.

    Requests that are numbered (``math-017``) are hit at even distances within their set, from a start drawn by the
    seed, so that a run of 240 has 12 hits at one in 20 rather than anything from 5 to 20; others are drawn singly.
    """
    if every == 0:
        return False
    numbered = NUMBERED.fullmatch(request.id)
    if numbered is None:
        return draw(every, "request", seed, request.id, request.repeat_id) == 0
    start = draw(every, "start", seed, numbered["set"], request.repeat_id)
    return (int(numbered["number"]) + start) % every == 0


def is_in_share(request: Request, *, share: float, seed: int) -> bool:
    """Whether a request is among the ``share`` (0 to 1) that a fault hits, spread as ``is_hit`` spreads them."""
    numbered = NUMBERED.fullmatch(request.id)
    if numbered is None:
        return chance("request", seed, request.id, request.repeat_id) < share
    start = chance("start", seed, numbered["set"], request.repeat_id)
    number = int(numbered["number"])
    return math.floor((number + 1) * share + start) > math.floor(number * share + start)


def is_late(request: Request, *, after: int) -> bool:
    """Whether a request comes late in its set: numbered ``after`` or above. Unnumbered requests never are."""
    numbered = NUMBERED.fullmatch(request.id)
    return numbered is not None and int(numbered["number"]) >= after
