"""The parent's side of a worker: a fresh interpreter that runs one module of this package, and ends with its parent."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import weakref
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe
from pathlib import Path
from typing import IO, Any

from lossguard.errors import EngineError

LAST_WORDS_BYTES = 4_000
WAIT_FOR_END_S = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerProcess:
    """One worker; whoever starts it kills it."""

    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    stderr: IO[bytes]

    @classmethod
    def start(cls, module: str, *, threads: int | None = None) -> WorkerProcess:
        """Run ``module.main(descriptor)``. ``threads`` are OpenMP's (None: as in this process's environment)."""
        ours, theirs = Pipe()
        stderr = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the worker)
        process = subprocess.Popen(  # noqa: S603  (this interpreter with a module of this package)
            # imported, not run as __main__, so that both sides pickle the same classes
            [
                sys.executable,
                "-c",
                f"import sys; from {module} import main; main(int(sys.argv[1]))",
                f"{theirs.fileno()}",
            ],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env=_environment(threads),
            pass_fds=(theirs.fileno(),),
            start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends its workers in order
        )
        theirs.close()
        weakref.finalize(process, _end_stdin, process.stdin)
        return cls(process=process, connection=ours, stderr=stderr)

    def send(self, message: object) -> None:
        """Raises EngineError LG0212 if the worker is gone."""
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._died() from error

    def receive(self) -> Any:
        """The worker's next message. Raises EngineError LG0212 if the worker is gone."""
        try:
            return self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error

    def kill(self) -> None:
        """End it and wait for that; may be called twice."""
        self.process.kill()
        self.process.wait()
        if self.process.stdin is not None:
            self.process.stdin.close()
        self.connection.close()
        self.stderr.close()

    def _died(self) -> EngineError:
        try:
            status: int | None = self.process.wait(timeout=WAIT_FOR_END_S)
        except subprocess.TimeoutExpired:
            status = None
        self.stderr.seek(0, os.SEEK_END)
        self.stderr.seek(max(0, self.stderr.tell() - LAST_WORDS_BYTES))
        last_words = self.stderr.read().decode(errors="replace").strip() or "nothing"
        return EngineError(
            f"a worker process ended with status {status}; its last words: {last_words}",
            why="the replies that it was serving are lost",
            fix="status -9: out of memory, lower processes or the batch; finished replies are kept for --resume",
            code="LG0212",
        )


def _environment(threads: int | None) -> dict[str, str]:
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    if threads is not None:
        environment["OMP_NUM_THREADS"] = str(threads)
    return environment


def _end_stdin(stdin: IO[bytes] | None) -> None:
    """A worker that nobody killed: closing standard input ends it."""
    if stdin is not None:
        stdin.close()
