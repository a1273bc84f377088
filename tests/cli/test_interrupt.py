"""A real run, killed or interrupted in the middle, goes on where it stopped."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from tests.gate.toy import STOP_ID, VOCAB_SIZE, write_model, write_prompts

ROOT = Path(__file__).parents[2]
NUM_REQUESTS = 80
"""Enough to be stopped among; no verdict is asked for."""
CONFIG = """
model = "model"
[systems.stock]
engine = "transformers"
batch_size = 4
threads = 1
[systems.other]
engine = "transformers"
batch_size = 3
threads = 1
[prompts]
sets = ["prompts.jsonl"]
[scorer]
threads = 1
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    """A project with a tiny real model, on which a check takes some seconds."""
    write_model(tmp_path / "model")
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB_SIZE,
        hidden_size=64,
        intermediate_size=96,
        num_hidden_layers=2,
        num_attention_heads=4,
        eos_token_id=STOP_ID,
        pad_token_id=STOP_ID,
    )
    torch.nn.Module.to(LlamaForCausalLM(config), torch.bfloat16).save_pretrained(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", 160)
    (tmp_path / "lossguard.toml").write_text(CONFIG)
    return tmp_path


def start(project: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}:{ROOT / 'suites'}", "LOSSGUARD_CACHE": str(project / "cache")}
    command = [sys.executable, "-c", "from lossguard.cli import main; main()", "check", *arguments]
    return subprocess.Popen(
        command,
        cwd=project,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        preexec_fn=heed_interrupts,
    )


def heed_interrupts() -> None:
    """A shell starts background jobs with SIGINT ignored, and what is ignored stays so in every process below."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def wait_for_lines(path: Path, count: int, process: subprocess.Popen[str]) -> None:
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        if path.exists() and len(path.read_bytes().splitlines()) >= count:
            return
        time.sleep(0.02)
    pytest.fail(f"no {count} lines in {path}: {process.stdout.read() if process.stdout else ''}")


@pytest.mark.slow
@pytest.mark.parametrize(("number", "exit_code"), [(signal.SIGKILL, -9), (signal.SIGINT, 2)])
def test_a_stopped_run_is_resumed(project: Path, number: signal.Signals, exit_code: int) -> None:
    outputs = project / ".lossguard" / "run-0001" / "other" / "outputs.jsonl"
    with start(project, "--candidate", "other", "--budget", f"{NUM_REQUESTS}x32x20") as first:
        wait_for_lines(outputs, 20, first)
        first.send_signal(number)
        assert first.wait(60) == exit_code
    before = outputs.read_bytes().splitlines()
    assert len(before) < NUM_REQUESTS, "the run was not stopped in the middle"
    with start(project, "--resume", ".lossguard/run-0001") as second:
        text = second.communicate(timeout=300)[0]
    assert second.returncode in (0, 1, 10), text
    after = outputs.read_bytes().splitlines()
    assert len(after) == NUM_REQUESTS
    assert after[: len(before) - 1] == before[:-1], "what was served is kept"
    assert (project / ".lossguard" / "run-0001" / "report.json").is_file()
