"""``lossguard serve``: a server in the foreground, and nothing left of it afterwards."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from lossguard.engines.servers.guardian import descendants
from tests.engines.servers.test_lifecycle import eventually, is_alive
from tests.gate.toy import write_model

ROOT = Path(__file__).parents[2]
CONFIG = f"""
model = "model"
[systems.stock]
engine = "vllm"
launch = "{sys.executable} -m tests.engines.servers.loopback vllm {{port}}"
[systems.far]
engine = "vllm"
url = "http://127.0.0.1:9"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_model(tmp_path / "model")
    (tmp_path / "lossguard.toml").write_text(CONFIG)
    return tmp_path


def heed_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and what is ignored stays so in every process below."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@contextmanager
def serve(project: Path, name: str) -> Iterator[subprocess.Popen[str]]:
    """``lossguard serve``, ended with the test whatever comes of it."""
    command = [sys.executable, "-c", "from lossguard.cli import main; main()", "serve", name]
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'suites'}"}
    running = subprocess.Popen(
        command,
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        preexec_fn=heed_interrupts,
    )
    with running:
        try:
            yield running
        finally:
            running.kill()


def test_a_server_in_the_foreground(project: Path) -> None:
    with serve(project, "stock") as running:
        assert running.stdout is not None
        found = re.search(r"serves at (http://127\.0\.0\.1:\d+)", running.stdout.readline())
        assert found is not None
        with urllib.request.urlopen(f"{found[1]}/health", timeout=30) as reply:
            assert reply.status == 200
        family = descendants(running.pid)
        assert len(family) == 2, "the guardian and the server"
        assert "serving vllm on" in running.stdout.readline(), "its log is shown"
        running.send_signal(signal.SIGINT)
        assert running.wait(60) == 0
        assert eventually(lambda: not any(is_alive(pid) for pid in family))


def test_a_server_that_ends_by_itself(project: Path) -> None:
    with serve(project, "stock") as running:
        assert running.stdout is not None
        running.stdout.readline()
        (server,) = [pid for pid in descendants(running.pid) if descendants(pid) == []]
        os.kill(server, signal.SIGKILL)
        assert running.wait(60) == 3


def test_one_behind_a_url_is_not_run(project: Path) -> None:
    with serve(project, "far") as running:
        _, errors = running.communicate(timeout=60)
        assert running.returncode == 4
        assert "LG0232" in errors
