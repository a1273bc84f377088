"""A worker process of the transformers engine; the pool starts ``main`` in a fresh interpreter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lossguard.engines.base import ForcedPrefix
from lossguard.engines.worker_messages import ToldError, connection_of, messages
from lossguard.errors import LossguardError
from lossguard.records import Request, ServedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One batch to serve, or one to decode along recorded replies."""

    requests: tuple[Request, ...] = ()
    forced: tuple[ForcedPrefix, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What came of a job; with ``error`` nothing else is set."""

    outputs: Sequence[ServedOutput] = ()
    forced: Sequence[tuple[int, ...]] = ()
    error: ToldError | None = None


def main(descriptor: int) -> None:
    """Serve jobs until the parent closes the connection."""
    connection = connection_of(descriptor)
    from lossguard.engines.transformers_session import Session, SessionSpec

    spec = connection.recv()
    if not isinstance(spec, SessionSpec):
        raise AssertionError(f"the first message was a {type(spec).__name__}")
    session = Session(spec)
    for job in messages(connection):
        if not isinstance(job, Job):
            raise AssertionError(f"a message was a {type(job).__name__}")
        try:
            answer = Answer(outputs=session.serve(job.requests) if job.requests else ())
            if job.forced:
                answer = Answer(forced=session.forced_decode(job.forced))
        except LossguardError as error:
            answer = Answer(error=ToldError.of(error))
        connection.send(answer)
