"""A worker process of the transformers engine; the pool calls ``main`` in a fresh interpreter.

Started as a fresh interpreter rather than through multiprocessing, which would run the user's script again to
import it. Jobs and answers are pickled over a socket that the parent made. Standard input is a pipe that the
parent holds open and never writes to: when it closes, the parent is gone, and so is this process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection

from lossguard.engines.base import ForcedPrefix
from lossguard.errors import LossguardError
from lossguard.records import Request, ServedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One batch to serve, or one to decode along recorded replies."""

    requests: tuple[Request, ...] = ()
    forced: tuple[ForcedPrefix, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a job; with ``error`` (class name, found, why, fix, code) nothing else is set."""

    outputs: Sequence[ServedOutput] = ()
    forced: Sequence[tuple[int, ...]] = ()
    error: tuple[str, str, str, str, str] | None = None


def main(descriptor: int) -> None:
    """Serve jobs until the parent closes the connection."""
    threading.Thread(target=_end_with_parent, daemon=True).start()
    connection: Connection[Answer, object] = Connection(descriptor)
    from lossguard.engines.transformers_session import Session, SessionSpec

    spec = connection.recv()
    if not isinstance(spec, SessionSpec):
        raise AssertionError(f"the first message was a {type(spec).__name__}")
    session = Session(spec)
    while True:
        try:
            job = connection.recv()
        except EOFError:
            return
        if not isinstance(job, Job):
            raise AssertionError(f"a message was a {type(job).__name__}")
        try:
            answer = Answer(outputs=session.serve(job.requests) if job.requests else ())
            if job.forced:
                answer = Answer(forced=session.forced_decode(job.forced))
        except LossguardError as error:
            answer = Answer(error=(type(error).__name__, error.found, error.why, error.fix, error.code))
        connection.send(answer)


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
