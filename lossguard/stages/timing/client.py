"""The client: sends the same requests to the arms in step, and holds the only clock that counts.

A step is one group of requests. Every arm of the turn gets it at the same moment, and the next step begins when all of
them have answered: no request is known before the last was answered, arms stay in step, and what is written to disk
in between is on nobody's clock.
"""

from __future__ import annotations

import gc
import hashlib
import select
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from lossguard.records import Request, SamplingParams
from lossguard.stages.timing.arms import Arm
from lossguard.stages.timing.channel import ChannelClosed, Message, ids_to_bytes, packed
from lossguard.stages.timing.run_log import Reply

OpenRequest = tuple[int, Request]  # place in the run, and what was asked


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """Requests that share one call of the engine, with their places in the run."""

    first_index: int
    requests: tuple[Request, ...]

    def open_requests(self) -> dict[str, OpenRequest]:
        """By id: place in the run, and the request."""
        return {request.id: (self.first_index + at, request) for at, request in enumerate(self.requests)}

    def message(self) -> Message:
        """What an arm gets."""
        entries = []
        ids: list[int] = []
        for request in self.requests:
            entry = request.to_json()
            entry["num_prompt_ids"] = len(entry.pop("prompt_ids"))
            entries.append(entry)
            ids += request.prompt_ids
        return Message(kind="serve", body={"requests": entries}, ids=tuple(ids))


def steps_of(requests: Sequence[Request], concurrency: int) -> list[Step]:
    """Groups of ``concurrency`` requests, in order."""
    return [
        Step(first_index=at, requests=tuple(requests[at : at + concurrency]))
        for at in range(0, len(requests), concurrency)
    ]


@contextmanager
def quiet_client() -> Iterator[None]:
    """No garbage collection of the client's own while it holds the clock.

    None before either: with a numeric library loaded it takes most of a second, and there are thousands of runs.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def exchange(arms: Mapping[int, Arm], step: Step, timeout_seconds: float, *, first: int) -> list[Reply]:
    """Send one step to all arms, ``first`` first, and collect all replies. Raises EngineError LG1004.

    A reply's time ends when all of its ids are here: an arm that reports early has nothing to report.
    """
    data = packed(step.message())  # before the clock is read
    sent: dict[int, int] = {}
    for arm in sorted(arms, key=lambda arm: arm != first):
        sent[arm] = time.monotonic_ns()
        arms[arm].send_packed(data)
    waiting = {arm: step.open_requests() for arm in arms}
    deadline = time.monotonic() + timeout_seconds
    replies = []
    while any(waiting.values()):
        for arm, arrived, received_ns in received_messages(arms, waiting, deadline):
            told = arms[arm].checked(arrived, "output")
            replies.append(to_reply(arms[arm], arm, told, waiting[arm], (sent[arm], received_ns)))
    return replies


def received_messages(
    arms: Mapping[int, Arm], waiting: Mapping[int, Mapping[str, OpenRequest]], deadline: float
) -> Iterator[tuple[int, Message, int]]:
    """Whole messages with the time at which their last byte was here. Raises EngineError LG1004."""
    by_file = {arms[arm].channel.fileno(): arm for arm, open_requests in waiting.items() if open_requests}
    ready, _, _ = select.select(list(by_file), [], [], max(0.0, deadline - time.monotonic()))
    if not ready:
        late = next(iter(by_file.values()))
        raise arms[late].failure("did not answer in time")
    for file in ready:
        arm = by_file[file]
        try:
            arms[arm].channel.read_available()
            received_ns = time.monotonic_ns()
            while (message := arms[arm].channel.buffered()) is not None:
                yield arm, message, received_ns
        except ChannelClosed as error:
            raise arms[arm].gone() from error


def to_reply(
    arm: Arm, index_of_arm: int, message: Message, waiting: dict[str, OpenRequest], clock: tuple[int, int]
) -> Reply:
    """A reply to a request that is open, of the length that was asked for, as evidence. Raises EngineError LG1004."""
    told = message.body
    request_id = str(told["request_id"])
    if request_id not in waiting:
        raise arm.failure(f"answered the request {request_id!r}, which was not open")
    if not message.ids or told["finish_reason"] == "abort":
        raise arm.failure(f"answered {request_id!r} with {len(message.ids)} tokens ({told['finish_reason']})")
    index, request = waiting.pop(request_id)
    wrong = length_problem(request.sampling, len(message.ids))
    if wrong:
        raise arm.failure(f"answered {request_id!r} with {wrong}")
    return Reply(
        arm=index_of_arm,
        index=index,
        request_id=request_id,
        sent_ns=clock[0],
        received_ns=clock[1],
        num_tokens=len(message.ids),
        ids_sha256=hashlib.sha256(ids_to_bytes(message.ids)).hexdigest(),
        finish_reason=str(told["finish_reason"]),
        first_ns=_optional(told.get("first_ns")),
        last_ns=_optional(told.get("last_ns")),
    )


def length_problem(sampling: SamplingParams, num_tokens: int) -> str | None:
    """What is wrong with a reply's number of tokens; None if it may be.

    Time counts by the token where lengths differ, so tokens that nobody asked for would count as speed.
    """
    if num_tokens > sampling.max_tokens:
        return f"{num_tokens} tokens where {sampling.max_tokens} are the most"
    least = sampling.max_tokens if sampling.ignore_eos and not sampling.stop_strings else sampling.min_tokens
    if num_tokens < least:
        return f"{num_tokens} tokens where {least} are the least"
    return None


def _optional(value: Any) -> int | None:
    return None if value is None else int(value)


def serve_steps(
    arms: Mapping[int, Arm],
    steps: Sequence[Step],
    timeout_seconds: float,
    keep: Callable[[Sequence[Reply]], None],
) -> None:
    """All steps in order; the arm that is sent to first alternates. ``keep`` is called between steps."""
    order = sorted(arms)
    with quiet_client():
        for number, step in enumerate(steps):
            keep(exchange(arms, step, timeout_seconds, first=order[number % len(order)]))
