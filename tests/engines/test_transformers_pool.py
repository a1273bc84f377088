"""Worker processes of the transformers engine."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

from lossguard.engines.transformers_engine import TransformersEngine
from lossguard.errors import EngineError
from tests.engines.tiny_systems import SAMPLES, engine, ids_of, make_requests, prefixes, serve


def is_running(process_id: int) -> bool:
    try:
        os.kill(process_id, 0)
    except ProcessLookupError:
        return False
    return "Z" not in Path(f"/proc/{process_id}/stat").read_text(encoding="utf-8").split()[2:3]


def workers(system: TransformersEngine) -> tuple[int, ...]:
    return system._pool.process_ids


def test_workers_serve_what_one_process_serves_and_end_with_the_engine(tiny_path: str) -> None:
    requests = make_requests(8)
    plain = serve(tiny_path, requests, batch_size=2)
    system = engine(tiny_path, processes=2, threads=1, batch_size=2)
    outputs = sorted(system.serve(requests), key=lambda output: output.request_id)
    assert ids_of(outputs) == ids_of(plain)
    assert system.forced_decode(prefixes(requests, outputs)) == ids_of(outputs)
    alive = workers(system)
    assert len(alive) == 2
    abandoned = system.serve(requests)
    next(abandoned)
    abandoned.close()  # type: ignore[attr-defined]
    assert workers(system) == ()
    system.close()
    assert not any(is_running(process_id) for process_id in alive)


def test_a_crash_is_told_with_its_last_words(tiny_path: str) -> None:
    system = engine(tiny_path, processes=2, threads=1, logits_processors=[f"{SAMPLES}:crash"])
    with pytest.raises(EngineError, match="status 7; its last words: the last words") as caught:
        list(system.serve(make_requests(1)))
    assert caught.value.code == "LG0212"
    assert workers(system) == ()


@pytest.mark.slow
def test_an_error_in_a_worker_arrives_as_it_was(tiny_path: str) -> None:
    system = engine(tiny_path, processes=2, threads=1, logits_processors=[f"{SAMPLES}:fail"])
    with pytest.raises(EngineError, match="this batch fails") as caught:
        list(system.serve(make_requests(1)))
    assert caught.value.code == "LG0211"


@pytest.mark.slow
def test_workers_end_when_their_parent_is_killed(tiny_path: str) -> None:
    script = f"""
        from tests.engines.tiny_systems import engine, make_requests
        system = engine({tiny_path!r}, processes=2, threads=1, batch_size=1)
        outputs = system.serve(make_requests(6, max_tokens=200))
        next(outputs)
        print(*system._pool.process_ids, flush=True)
        input()
    """
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    parent = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(script)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment,
    )
    assert parent.stdout is not None
    alive = [int(number) for number in parent.stdout.readline().split()]
    parent.kill()
    parent.communicate()
    assert len(alive) == 2
    deadline = time.monotonic() + 20
    while any(is_running(process_id) for process_id in alive) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert not any(is_running(process_id) for process_id in alive)
