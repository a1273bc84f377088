"""kill -9 of lossguard, and of a server, in the middle of a run: a second call goes on with what was kept."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lossguard.engines.servers.guardian import descendants
from tests.engines.servers.test_lifecycle import eventually, is_alive
from tests.gate.toy import write_model, write_prompts

ROOT = Path(__file__).parents[3]
CONFIG = f"""
model = "model"
[systems.stock]
engine = "sglang"
launch = "{sys.executable} -m tests.engines.servers.loopback sglang {{port}} delay=0.03"
start_seconds = 120
[systems.candidate]
engine = "vllm"
launch = "{sys.executable} -m tests.engines.servers.loopback vllm {{port}} delay=0.05"
start_seconds = 120
[prompts]
sets = ["prompts.jsonl"]
[scorer]
engine = "tests.engines.servers.toy_parts:toy_scorer"
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    write_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", 400)
    (tmp_path / "lossguard.toml").write_text(CONFIG)
    return tmp_path


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'suites'}", "LOSSGUARD_CACHE": str(project / "cache")}
    command = [sys.executable, "-c", "from lossguard.cli import main; main()", "check", *arguments]
    return subprocess.Popen(
        command, cwd=project, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 240
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and len(path.read_bytes().splitlines()) >= count:
            return
        time.sleep(0.02)
    process.kill()
    pytest.fail(f"no {count} lines in {path}: {process.stdout.read() if process.stdout else ''}")


def resumed(project: Path, outputs: Path, before: list[bytes]) -> None:
    """The second call finishes the run, and keeps what the first one had."""
    with start(project, "--resume", ".lossguard/run-0001") as second:
        text = second.communicate(timeout=400)[0]
    assert second.returncode == 0, text
    after = outputs.read_bytes().splitlines()
    assert len(after) == (60 if outputs.name.startswith("calibration") else 210)
    assert after[: len(before) - 1] == before[:-1]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("victim", "place"),
    [
        ("lossguard", "candidate/outputs.jsonl"),
        ("lossguard", "stock/calibration-outputs.jsonl"),
        ("lossguard", "stock/outputs.jsonl"),
        ("server", "candidate/outputs.jsonl"),
        ("server", "stock/outputs.jsonl"),
    ],
)
def test_killed_in_the_middle(project: Path, victim: str, place: str) -> None:
    outputs = project / ".lossguard" / "run-0001" / place
    kind = "vllm" if place.startswith("candidate") else "sglang"
    with start(project, "--candidate", "candidate", "--budget", "210x24") as first:
        wait_for_lines(outputs, 20, first)
        family = descendants(first.pid)
        assert len(family) >= (4 if kind == "vllm" else 2), "a guardian with each server"
        if victim == "lossguard":
            first.kill()
            assert first.wait(60) == -signal.SIGKILL
        else:
            named = [pid for pid in family if kind.encode() in cmdline(pid)]
            (server,) = [pid for pid in named if b"guardian" not in cmdline(pid)]
            os.kill(server, signal.SIGKILL)
            text = first.communicate(timeout=120)[0]
            assert first.returncode == 3, text
            assert "exit code -9 while it served" in text
            assert f"serving {kind} on" in text, "the log's tail"
        assert eventually(lambda: not any(is_alive(pid) for pid in family)), "nothing outlives the run"
    before = outputs.read_bytes().splitlines()
    assert 20 <= len(before) < (60 if "calibration" in place else 210), "the run was not stopped in the middle"
    assert (outputs.parent / "server.log").is_file()
    resumed(project, outputs, before)


def cmdline(pid: int) -> bytes:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return b""
