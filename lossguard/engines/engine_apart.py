"""Engines that serve in a worker process, which several systems share one after the other."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lossguard.engines.base import Capabilities, Engine, ForcedPrefix, Pace
from lossguard.engines.engine_worker import Opened, OpenSystem, Served, ServeRequests
from lossguard.engines.worker_messages import ToldError
from lossguard.engines.worker_process import WorkerProcess
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput

WORKER = "lossguard.engines.engine_worker"


class SharedWorker:
    """One process, started at once, with one open system at a time. For one thread; ``kill`` may come from another."""

    def __init__(self) -> None:
        self.process = WorkerProcess.start(WORKER)
        self._open: OpenSystem | None = None

    def open(self, system: OpenSystem) -> None:
        """Have the system's engine made, without waiting for it."""
        if self._open is not None:  # nobody asked that one: its answer still lies in the pipe
            self.process.receive()
        self._open = system
        self.process.send(system)

    def serve(self, system: OpenSystem, fingerprint: Mapping[str, Any], order: ServeRequests) -> Iterator[ServedOutput]:
        """Replies of a system whose engine has ``fingerprint`` in this process.

        Raises the worker's own errors, EngineError LG0212 if it died, LG0219 if its engine is another one.
        """
        if self._open != system:
            self.open(system)
        self._open = None  # opened anew for the next call, as memory is given back between systems
        opened = self._answer()
        if not isinstance(opened, Opened):
            raise AssertionError(f"a worker sent a {type(opened).__name__} for an engine")
        _require_same(system.name, fingerprint, opened.fingerprint)
        self.process.send(order)
        while not isinstance(answer := self._answer(), Served):
            if not isinstance(answer, ServedOutput):
                raise AssertionError(f"a worker sent a {type(answer).__name__} for a reply")
            yield answer

    def kill(self) -> None:
        """End the process, whatever it does."""
        self.process.kill()

    def _answer(self) -> object:
        answer = self.process.receive()
        if isinstance(answer, ToldError):
            raise answer.rebuilt()
        return answer


class EngineApart:
    """Serves as ``local`` would, in the worker; ``local`` itself loads nothing.

    Only for engines that say of themselves that they may (``is_movable``): their replies depend on nothing that another
    process of this machine does not have.
    """

    def __init__(self, local: Engine, system: OpenSystem, worker: SharedWorker) -> None:
        self._local = local
        self._system = system
        self._worker = worker
        self._fingerprint = local.fingerprint()

    @property
    def capabilities(self) -> Capabilities:
        """Those of the same engine here."""
        return self._local.capabilities

    def fingerprint(self) -> Mapping[str, Any]:
        """That of the same engine here, to which the worker's is compared before it serves."""
        return self._fingerprint

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        """Yield outputs as they end; raises what ``SharedWorker.serve`` does."""
        return self._worker.serve(self._system, self._fingerprint, ServeRequests(requests=tuple(requests)))

    def serve_paced(self, requests: Sequence[Request], pace: Pace) -> Iterator[ServedOutput]:
        """As ``serve``, of an engine that is a ``PacedEngine``: a gate refuses levels of others before (LG0623)."""
        order = ServeRequests(requests=tuple(requests), pace=pace)
        return self._worker.serve(self._system, self._fingerprint, order)

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """In this process: audits come while the worker serves the next system."""
        return self._local.forced_decode(batch)

    def close(self) -> None:
        """The worker is shared and belongs to whoever started it."""
        self._local.close()


def _require_same(name: str, here: Mapping[str, Any], there: Mapping[str, Any]) -> None:
    one, other = (json.loads(json.dumps(dict(facts))) for facts in (here, there))
    different = sorted(key for key in one.keys() | other.keys() if one.get(key) != other.get(key))
    if different:
        shown = "; ".join(f"{key}: here {one.get(key)!r}, there {other.get(key)!r}" for key in different)
        raise EngineError(
            f"the system {name!r} is another one in a worker process ({shown})",
            why="replies would be judged as those of a system that did not serve them",
            fix="set in the environment or in the system's options what this process sets by itself",
            code="LG0219",
        )
