"""The client under an arrival trace: requests are sent when they are due, whether earlier ones were answered or not."""

from __future__ import annotations

import random
import select
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from lossguard.stages.timing.arms import Arm
from lossguard.stages.timing.channel import Message, packed
from lossguard.stages.timing.client import OpenRequest, Step, quiet_client, received_messages, to_reply
from lossguard.stages.timing.run_log import Reply


def arrival_offsets(count: int, per_second: float, seed: int) -> list[float]:
    """Seconds from the start at which requests are due: a Poisson process, the same for the same seed."""
    draw = random.Random(seed)
    offsets, now = [], 0.0
    for _ in range(count):
        offsets.append(now)
        now += draw.expovariate(per_second)
    return offsets


@dataclass
class _Open:
    """Requests on their way."""

    waiting: dict[int, dict[str, OpenRequest]]  # by arm and request id
    sent_ns: dict[str, int] = field(default_factory=dict)
    due_ns: dict[str, int] = field(default_factory=dict)


def serve_trace(
    arms: Mapping[int, Arm],
    steps: Sequence[Step],
    offsets: Sequence[float],
    timeout_seconds: float,
    keep: Callable[[Sequence[Reply]], None],
) -> None:
    """Send every step to all arms at its time, and collect all replies. Their time counts from when they were due.

    Replies are kept at the end, since writing them would delay what is due. Raises EngineError LG1004.
    """
    state, replies, number = _Open(waiting={arm: {} for arm in arms}), list[Reply](), 0
    with quiet_client():
        begun_ns = time.monotonic_ns()
        deadline = time.monotonic() + offsets[-1] + timeout_seconds
        while number < len(steps) or any(state.waiting.values()):
            due_ns = begun_ns + round(offsets[number] * 1e9) if number < len(steps) else None
            if due_ns is not None and time.monotonic_ns() >= due_ns:
                _send(arms, steps[number], state, due_ns)
                number += 1
                continue
            for arm, message, received_ns in _arrived(arms, state, due_ns, deadline):
                told = arms[arm].checked(message, "output")
                reply = to_reply(arms[arm], arm, told, state.waiting[arm], (0, received_ns))
                name = reply.request_id
                replies.append(replace(reply, sent_ns=state.sent_ns[name], due_ns=state.due_ns[name]))
    keep(replies)


def _send(arms: Mapping[int, Arm], step: Step, state: _Open, due_ns: int) -> None:
    data, now_ns = packed(step.message()), time.monotonic_ns()
    places = step.open_requests()
    for name in places:
        state.due_ns[name], state.sent_ns[name] = due_ns, now_ns
    for arm in arms:
        state.waiting[arm] |= places
        arms[arm].send_packed(data)


def _arrived(
    arms: Mapping[int, Arm], state: _Open, due_ns: int | None, deadline: float
) -> Iterable[tuple[int, Message, int]]:
    """Messages that come before the next request is due."""
    patience = max(0.0, deadline - time.monotonic() if due_ns is None else (due_ns - time.monotonic_ns()) / 1e9)
    files = [arms[arm].channel.fileno() for arm, places in state.waiting.items() if places]
    if due_ns is not None and not select.select(files, [], [], patience)[0]:
        return ()
    return received_messages(arms, state.waiting, deadline)
