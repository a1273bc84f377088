"""Engines in a worker process: the same replies, and every way in which the process can fail is told."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from lossguard.engines.base import EngineSpec
from lossguard.engines.engine_apart import EngineApart, SharedWorker
from lossguard.engines.engine_worker import OpenSystem, ServeRequests
from lossguard.errors import EngineError, UsageError
from tests.engines import counting_engine
from tests.engines.counting_engine import CountingEngine, make_requests

KIND = f"{counting_engine.__name__}:create"


@pytest.fixture
def worker() -> Iterator[SharedWorker]:
    started = SharedWorker()
    yield started
    started.kill()


def apart(worker: SharedWorker, here: dict[str, Any] | None = None, **there: Any) -> EngineApart:
    """A system with the options ``there``, and ``here`` (None: the same) in this process."""
    local = CountingEngine(EngineSpec(name="counting", model_path="nowhere", options=there if here is None else here))
    order = OpenSystem(kind=KIND, name="counting", model_path="nowhere", options=there, folder=None)
    return EngineApart(local, order, worker)


def test_systems_share_a_process_and_serve_what_they_serve_here(worker: SharedWorker) -> None:
    requests = make_requests(5)
    for step in (1, 3):
        system = apart(worker, step=step)
        here = CountingEngine(EngineSpec(name="counting", model_path="nowhere", options={"step": step}))
        assert list(system.serve(requests)) == list(here.serve(requests))
        assert list(system.serve(requests[:2])) == list(here.serve(requests[:2])), "a second call"
        assert system.capabilities == here.capabilities
        assert system.fingerprint() == here.fingerprint()
        system.close()


def test_replies_come_one_by_one(worker: SharedWorker) -> None:
    stream = apart(worker, dies_at=2).serve(make_requests(4))
    assert [next(stream).request_id, next(stream).request_id] == ["r0", "r1"]
    with pytest.raises(EngineError, match="status 9; its last words: this is the end"):
        next(stream)


def test_a_killed_worker_is_an_error_that_says_so(worker: SharedWorker) -> None:
    system = apart(worker)
    assert list(system.serve(make_requests(1)))
    os.kill(worker.process.process.pid, signal.SIGKILL)
    with pytest.raises(EngineError, match="ended with status -9") as caught:
        list(system.serve(make_requests(1)))
    assert caught.value.code == "LG0212"


def test_an_error_there_arrives_as_it_was(worker: SharedWorker) -> None:
    with pytest.raises(EngineError, match="told to fail") as caught:
        list(apart(worker, fails_at=0).serve(make_requests(1)))
    assert (caught.value.code, caught.value.fix) == ("LG0211", "do not")
    assert list(apart(worker).serve(make_requests(1))), "the process goes on"


def test_an_engine_that_is_not_there_is_told(worker: SharedWorker) -> None:
    order = OpenSystem(kind="nothing", name="counting", model_path="nowhere", options={}, folder=Path("nowhere"))
    with pytest.raises(UsageError, match="LG0201"):
        list(worker.serve(order, {}, ServeRequests(requests=tuple(make_requests(1)))))


def test_another_engine_than_the_one_here_serves_nothing(worker: SharedWorker) -> None:
    with pytest.raises(EngineError, match="step: here 1, there 2") as caught:
        list(apart(worker, here={}, step=2).serve(make_requests(1)))
    assert caught.value.code == "LG0219"
