"""Serving ahead: a second process serves the test replies, while this one calibrates, scores, audits and judges.

Replies, thresholds and verdicts are those of a run without it. Requests are asked of each system in the same order and
number, so that they meet the same neighbours; thresholds are still frozen before a reply of any arm is scored; claims
are decided in the plan's order. What fails there is raised here, when its system's turn comes.

Covered: systems by the configuration whose engines say that another process serves the same (``is_movable``).
Not covered: systems that exist in this process only, servers, accelerators; they are served in their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field

from lossguard.config import SystemConfig
from lossguard.engines.base import Engine
from lossguard.engines.engine_apart import EngineApart, SharedWorker
from lossguard.engines.engine_worker import OpenSystem
from lossguard.records import Request
from lossguard.stages.serving import Asking, serve_missing
from lossguard.stages.waves import waves_as_exercised
from lossguard.stages.workspace import Workspace, with_test_logprobs

PROGRESS_SECONDS = 0.5  # between two looks at how far the other process is


@dataclass
class _Ward:
    """A system that is served ahead: how far it is, and what its readers are to be told."""

    num_tokens: int = 0
    notes: list[str] = field(default_factory=list)
    served: Future[None] | None = None


class Ahead:
    """One worker process and the thread that feeds it. ``close`` ends both, whatever they do."""

    def __init__(self, workspace: Workspace, systems: Sequence[SystemConfig]) -> None:
        self._workspace = workspace
        self._systems = list(systems)
        self._wards = {system.name: _Ward() for system in systems}
        self._worker = SharedWorker()
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="lossguard-ahead")
        with ExitStack() as undo:
            undo.callback(self.close)
            self._worker.open(self._order(systems[0]))  # imports and loads while this process prepares prompts
            undo.pop_all()

    def begin(self, requests: Sequence[Request]) -> None:
        """Serve ``requests`` on every system, one after the other; returns at once."""
        for system in self._systems:
            engine = EngineApart(self._workspace.engine(system), self._order(system), self._worker)
            self._wards[system.name].served = self._pool.submit(self._serve, system, engine, requests)

    def has(self, system: SystemConfig) -> bool:
        """Whether that system is served ahead; each other one is served when its turn comes."""
        return system.name in self._wards

    def follow(self, system: SystemConfig, progress: Callable[[int], None]) -> None:
        """Wait until a system's replies are on disk.

        Raises what serving it raised: EngineError LG0212 if the worker died, LG0219 if it is another engine there.
        """
        ward = self._wards[system.name]
        if ward.served is None:
            raise AssertionError("begin comes before follow")
        shown, is_done = 0, False
        while not is_done:
            is_done = bool(wait([ward.served], timeout=PROGRESS_SECONDS).done)
            now = ward.num_tokens
            progress(now - shown)
            shown = now
        for text in ward.notes:
            self._workspace.note(text)
        ward.served.result()

    def close(self) -> None:
        """End the worker; what it has served is on disk."""
        self._worker.process.process.kill()  # wakes the thread, which waits for it
        self._pool.shutdown(wait=True, cancel_futures=True)
        self._worker.kill()

    def _serve(self, system: SystemConfig, engine: Engine, requests: Sequence[Request]) -> None:
        ward = self._wards[system.name]

        def advance(num_tokens: int) -> None:
            ward.num_tokens += num_tokens

        path = self._workspace.folder.system(system.name) / "outputs.jsonl"
        how = Asking(
            ask=with_test_logprobs, note=ward.notes.append, waves=waves_as_exercised(system.exercise, requests)
        )
        serve_missing(lambda: engine, requests, path, advance, how)

    def _order(self, system: SystemConfig) -> OpenSystem:
        return OpenSystem(
            kind=system.engine,
            name=system.name,
            model_path=str(self._workspace.model_path(system)),
            options=system.options,
            folder=self._workspace.folder.path / system.name,
        )


@contextmanager
def serving_ahead(workspace: Workspace) -> Iterator[Ahead | None]:
    """While this is open, systems that can be are served ahead, from ``begin`` on; None where none can, or should."""
    if workspace.is_offline or not workspace.plan.serve_ahead:
        yield None
        return
    chosen: list[SystemConfig] = []
    for system in _served_live(workspace):
        reason = why_in_turn(workspace, system)
        where = f"in its turn: {reason}" if reason else "ahead, in a process apart"
        workspace.folder.log(f"{system.name} is served {where}")
        chosen += [] if reason else [system]
    if not chosen:
        yield None
        return
    workspace.ahead = Ahead(workspace, chosen)
    try:
        yield workspace.ahead
    finally:
        workspace.ahead.close()
        workspace.ahead = None


def why_in_turn(workspace: Workspace, system: SystemConfig) -> str:
    """Why a system cannot be served ahead, decided by the plan alone; nothing if it can."""
    if workspace.plan.handle(system.name) is not None:
        return "it exists in this process only"
    if not getattr(workspace.engine(system), "is_movable", False):
        return "its engine does not say that another process serves the same"
    return ""


def _served_live(workspace: Workspace) -> list[SystemConfig]:
    """Stock, unless a record stands in for it, and the candidates."""
    plan = workspace.plan
    return [*(() if plan.record else (plan.stock,)), *plan.systems]
