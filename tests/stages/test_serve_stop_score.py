"""One accelerator that cannot hold stock, candidate and scorer at once: serve, stop, wait for its memory, score."""

from __future__ import annotations

import os
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pytest

from lossguard.config import ScorerConfig, SystemConfig
from lossguard.gate import run_gate
from lossguard.plan import Budget, Plan
from lossguard.scoring.registry import scorer_factory
from tests.gate.conftest import make_stack

BUDGET = Budget(name="one-card", num_requests=10, max_tokens=6, num_calibration=6)
RELEASE_SECONDS = 0.4
HOLD = """#!/bin/sh
# <folder> <name> command...: hold the card under that name, and note who held it before
folder=$1; name=$2; shift 2
echo "$name after $(ls "$folder/held" | wc -l)" >> "$folder/starts"
echo $$ > "$folder/held/$name-$$"
exec "$@"
"""
SMI = """#!/bin/sh
echo "0, $((300 + 20000 * $(ls "{folder}/held" | wc -l)))"
"""


class Card:
    """One device: each process on it holds 20 GB, and still does for a moment after it has ended."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        (folder / "held").mkdir(parents=True)
        (folder / "bin").mkdir()
        self._write("hold", HOLD)
        self._write("bin/nvidia-smi", SMI.format(folder=folder))
        self._is_open = True
        self._thread = threading.Thread(target=self._driver, daemon=True)

    def launch(self, name: str, module: str, kind: str) -> dict[str, Any]:
        """Options of a server that holds the card while it runs."""
        words = [sys.executable, "-m", module, kind, "{port}"]
        held = [str(self.folder / "hold"), str(self.folder), name, *words]
        path = {"PYTHONPATH": os.pathsep.join(sys.path)}
        return {"launch": held, "env": path, "devices": 1, "start_seconds": 40, "stop_seconds": 5, "concurrency": 4}

    @property
    def starts(self) -> list[str]:
        """Who took the card in which order, with how many on it already."""
        return (self.folder / "starts").read_text().splitlines()

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._is_open = False
        self._thread.join(5)

    def _driver(self) -> None:
        """Gives memory back a moment after its process has gone."""
        while self._is_open:
            for held in (self.folder / "held").iterdir():
                text = held.read_text().strip()
                if text and not _is_running(int(text)):
                    time.sleep(RELEASE_SECONDS)
                    held.unlink()
            time.sleep(0.05)

    def _write(self, name: str, text: str) -> None:
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)


def _is_running(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.slow
def test_stock_candidate_and_a_scoring_server_take_turns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    stack = make_stack(tmp_path, monkeypatch)
    monkeypatch.setattr("lossguard.stages.workspace.scorer_factory", scorer_factory)
    with Card(tmp_path / "card") as card:
        monkeypatch.setenv("PATH", f"{card.folder / 'bin'}{os.pathsep}{os.environ['PATH']}")
        serving, scoring = "tests.engines.servers.loopback", "tests.scoring.servers.scoring_loopback"
        systems = {
            name: SystemConfig(name=name, engine="vllm", options=card.launch(name, serving, "vllm"))
            for name in ("stock", "candidate")
        }
        options = {**card.launch("scorer", scoring, "sglang"), "concurrency": 8}
        config = replace(stack.config, systems=systems, scorer=ScorerConfig(engine="sglang", options=options))
        result = run_gate(Plan(config, candidates=["candidate"], budget=BUDGET, folder=tmp_path / "runs"))
        assert list((card.folder / "held").iterdir()) == [], "the run ends only when the card is free"
    names = [line.partition(" ")[0] for line in card.starts]
    assert [line.partition(" after ")[2].strip() for line in card.starts] == ["0"] * len(names)
    assert names[:2] == ["stock", "scorer"], "calibration is served, then scored"
    assert names.index("candidate") < len(names) - names[::-1].index("scorer") - 1
    assert (result.run_folder / "scorer-server" / "server.log").is_file()
    log = (result.run_folder / "log.txt").read_text()
    for note in (
        "stock is stopped where it runs: the scorer needs its device",
        "the scorer is closed: stock needs its device",
        "stock is stopped where it runs: candidate needs its device",
        "scoring follows serving: candidate and the scorer share a device",
    ):
        assert note in log
    assert not log.startswith("candidate"), "nothing is said of a server that never ran"
