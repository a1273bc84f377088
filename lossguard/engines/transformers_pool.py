"""Worker processes of the transformers engine: dealt one batch at a time, gone when the engine is."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import weakref
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection, Pipe, wait
from pathlib import Path
from typing import IO, Any

from lossguard import errors
from lossguard.engines.transformers_session import SessionSpec, resolve_threads
from lossguard.engines.transformers_worker import Answer, Job
from lossguard.errors import EngineError, LossguardError

# imported, not run as __main__, so that both sides pickle the same classes
WORKER = "import sys; from lossguard.engines.transformers_worker import main; main(int(sys.argv[1]))"
LAST_WORDS_BYTES = 4_000
WAIT_FOR_END_S = 10


class WorkerPool:
    """``processes`` workers with a model each. Workers start at the first job.

    After an error, Ctrl-C or an abandoned iteration the workers are killed, for one of them may be in the middle
    of a batch; the next call starts new ones.
    """

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self._workers: list[_Worker] = []

    def run(self, jobs: Sequence[Job]) -> Iterator[Answer]:
        """Answers as they come, in any order. Raises the EngineError of a worker, or LG0212 if one died."""
        is_complete = False
        try:
            yield from self._deal(list(jobs))
            is_complete = True
        finally:
            if not is_complete:
                self.close()

    def close(self) -> None:
        """Kill the workers and wait for their end."""
        workers, self._workers = self._workers, []
        for worker in workers:
            worker.kill()

    @property
    def process_ids(self) -> tuple[int, ...]:
        """Of the running workers."""
        return tuple(worker.process.pid for worker in self._workers)

    def _deal(self, waiting: list[Job]) -> Iterator[Answer]:
        waiting.reverse()
        while len(self._workers) < min(self._spec.options.processes, len(waiting)):
            self._workers.append(_start(self._spec))
        busy: dict[Connection[Any, Any], _Worker] = {}
        for worker in self._workers:
            if waiting:
                worker.send(waiting.pop())
                busy[worker.connection] = worker
        while busy:
            for ready in wait(list(busy)):
                worker = next(item for connection, item in busy.items() if connection is ready)
                answer = worker.receive()
                if waiting:
                    worker.send(waiting.pop())
                else:
                    del busy[worker.connection]
                yield answer


@dataclass(frozen=True, slots=True, kw_only=True)
class _Worker:
    process: subprocess.Popen[bytes]
    connection: Connection[Any, Any]
    stderr: IO[bytes]

    def send(self, message: object) -> None:
        try:
            self.connection.send(message)
        except OSError as error:
            raise self._died() from error

    def receive(self) -> Answer:
        try:
            answer = self.connection.recv()
        except (EOFError, OSError) as error:
            raise self._died() from error
        if not isinstance(answer, Answer):
            raise AssertionError(f"a worker sent a {type(answer).__name__}")
        if answer.error is not None:
            raise _rebuilt(answer.error)
        return answer

    def kill(self) -> None:
        _end(self.process, self.connection, self.stderr)

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
            why="the batch that it was serving is lost",
            fix="status -9: out of memory, lower processes or batch_size; finished replies are kept for --resume",
            code="LG0212",
        )


def _start(spec: SessionSpec) -> _Worker:
    ours, theirs = Pipe()
    stderr = tempfile.TemporaryFile()  # noqa: SIM115  (lives as long as the worker)
    environment = dict(os.environ)
    environment["PYTHONPATH"] = os.pathsep.join(path or str(Path.cwd()) for path in sys.path)
    environment["OMP_NUM_THREADS"] = str(resolve_threads(spec.options)[0])
    process = subprocess.Popen(  # noqa: S603  (this interpreter with a module of this package)
        [sys.executable, "-c", WORKER, str(theirs.fileno())],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=stderr,
        env=environment,
        pass_fds=(theirs.fileno(),),
        start_new_session=True,  # Ctrl-C reaches the parent alone, which then ends its workers in order
    )
    theirs.close()
    worker = _Worker(process=process, connection=ours, stderr=stderr)
    weakref.finalize(process, _end_stdin, process.stdin)
    worker.send(spec)
    return worker


def _end(process: subprocess.Popen[bytes], connection: Connection[Any, Any], stderr: IO[bytes]) -> None:
    process.kill()
    process.wait()
    if process.stdin is not None:
        process.stdin.close()
    connection.close()
    stderr.close()


def _end_stdin(stdin: IO[bytes] | None) -> None:
    """A pool that was never closed: closing standard input ends the worker."""
    if stdin is not None:
        stdin.close()


def _rebuilt(error: tuple[str, str, str, str, str]) -> LossguardError:
    kind, found, why, fix, code = error
    error_class: type[LossguardError] = getattr(errors, kind)
    return error_class(found, why=why, fix=fix, code=code)
