"""The worker's side of a worker process, and the form in which errors cross from one process to the other.

A worker is a fresh interpreter rather than one of multiprocessing's, which would run the user's script again to import
it. Messages are pickled over a socket that the parent made. Standard input is a pipe that the parent holds open and
never writes to: when it closes, the parent is gone, and so is this process.
"""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from lossguard import errors
from lossguard.errors import LossguardError


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldError:
    """A ``LossguardError`` as a message."""

    kind: str  # name of its class
    found: str
    why: str
    fix: str
    code: str

    @classmethod
    def of(cls, error: LossguardError) -> ToldError:
        """The message that stands for ``error``."""
        return cls(kind=type(error).__name__, found=error.found, why=error.why, fix=error.fix, code=error.code)

    def rebuilt(self) -> LossguardError:
        """The same error in this process."""
        error_class: type[LossguardError] = getattr(errors, self.kind, errors.EngineError)
        return error_class(self.found, why=self.why, fix=self.fix, code=self.code)


def connection_of(descriptor: int) -> Connection[Any, Any]:
    """The socket to the parent; from now on this process ends when its parent does."""
    os.set_inheritable(descriptor, False)  # noqa: FBT003 - a process of an engine's must not keep it open after this one
    threading.Thread(target=_end_with_parent, daemon=True).start()
    return Connection(descriptor)


def messages(connection: Connection[Any, Any]) -> Iterator[object]:
    """What the parent sends, until it closes the connection."""
    while True:
        try:
            yield connection.recv()
        except EOFError:
            return


def _end_with_parent() -> None:
    sys.stdin.buffer.read()
    os._exit(1)
