"""Worker processes of the transformers engine: dealt one batch at a time, gone when the engine is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from multiprocessing.connection import Connection, wait
from typing import Any

from lossguard.engines.transformers_session import SessionSpec, resolve_threads
from lossguard.engines.transformers_worker import Answer, Job
from lossguard.engines.worker_process import WorkerProcess

WORKER = "lossguard.engines.transformers_worker"


class WorkerPool:
    """``processes`` workers with a model each. Workers start at the first job.

    After an error, Ctrl-C or an abandoned iteration the workers are killed, for one of them may be in the middle
    of a batch; the next call starts new ones.
    """

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self._workers: list[WorkerProcess] = []

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
            self._workers.append(WorkerProcess.start(WORKER, threads=resolve_threads(self._spec.options)[0]))
            self._workers[-1].send(self._spec)
        busy: dict[Connection[Any, Any], WorkerProcess] = {}
        for worker in self._workers:
            if waiting:
                worker.send(waiting.pop())
                busy[worker.connection] = worker
        while busy:
            for ready in wait(list(busy)):
                worker = next(item for connection, item in busy.items() if connection is ready)
                answer = _answer_of(worker)
                if waiting:
                    worker.send(waiting.pop())
                else:
                    del busy[worker.connection]
                yield answer


def _answer_of(worker: WorkerProcess) -> Answer:
    answer = worker.receive()
    if not isinstance(answer, Answer):
        raise AssertionError(f"a worker sent a {type(answer).__name__}")
    if answer.error is not None:
        raise answer.error.rebuilt()
    return answer
