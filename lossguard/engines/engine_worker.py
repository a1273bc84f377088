"""A worker process that serves whole systems, one after the other; ``engine_apart`` is the parent's side.

They share an interpreter, so engines are movable only if nothing but this project's own packages runs in them.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.engines.base import Engine, EngineSpec, Pace, PacedEngine
from lossguard.engines.registry import engine_factory
from lossguard.engines.worker_messages import ToldError, connection_of, messages
from lossguard.errors import LossguardError
from lossguard.records import Request, ServedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenSystem:
    """Make the engine of a system; the one before it is closed. Answered with ``Opened``."""

    kind: str
    name: str
    model_path: str
    options: Mapping[str, Any]
    folder: Path | None

    def open(self) -> Engine:
        """The engine, by its kind's factory."""
        spec = EngineSpec(name=self.name, model_path=self.model_path, options=self.options, folder=self.folder)
        return engine_factory(self.kind)(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """The engine is made."""

    fingerprint: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeRequests:
    """Serve these on the engine that is open. Answered with a ``ServedOutput`` each, then ``Served``."""

    requests: tuple[Request, ...]
    pace: Pace | None = None  # None: the engine's own

    def on(self, engine: Engine) -> Iterator[ServedOutput]:
        """The replies of ``engine``."""
        if self.pace is None:
            return engine.serve(self.requests)
        if not isinstance(engine, PacedEngine):
            raise AssertionError(f"a pace was ordered of {engine}, which has its own")
        return engine.serve_paced(self.requests, self.pace)


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """All replies have been sent."""


def main(descriptor: int) -> None:
    """Serve until the parent closes the connection."""
    connection = connection_of(descriptor)
    engine: Engine | None = None
    for message in messages(connection):
        try:
            if isinstance(message, OpenSystem):
                if engine is not None:
                    engine.close()
                engine = message.open()
                connection.send(Opened(fingerprint=dict(engine.fingerprint())))
            elif isinstance(message, ServeRequests) and engine is not None:
                for output in message.on(engine):
                    connection.send(output)
                connection.send(Served())
            else:
                raise AssertionError(f"a message was a {type(message).__name__}, the engine {engine}")
        except LossguardError as error:
            connection.send(ToldError.of(error))
