"""The run folder: atomic, append-only, and honest about damage."""

from __future__ import annotations

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lossguard.errors import IntegrityError, StorageError, UsageError
from lossguard.records import FinishReason, ServedOutput
from lossguard.run_folder import RunFolder, append_line, read_outputs, write_atomically


def output(name: str) -> dict[str, object]:
    return ServedOutput(request_id=name, ids=(1, 2), finish_reason=FinishReason.LENGTH).to_json()


def test_runs_are_numbered_and_ignored_by_git(tmp_path: Path) -> None:
    root = tmp_path / ".lossguard"
    assert [RunFolder.create(root).path.name for _ in range(3)] == ["run-0001", "run-0002", "run-0003"]
    (root / "run-0002").rmdir()
    assert RunFolder.create(root).path.name == "run-0004"
    assert (root / ".gitignore").read_text() == "*\n"


def test_open_refuses_another_folder(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="LG0605"):
        RunFolder.open(tmp_path)


def test_lines_come_back(tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    for name in "abc":
        append_line(path, output(name))
    outputs, notes = read_outputs(path)
    assert list(outputs) == ["a", "b", "c"]
    assert notes == []
    assert read_outputs(tmp_path / "absent") == ({}, [])


@pytest.mark.parametrize("cut", [1, 5, 30])
def test_a_truncated_last_line_is_dropped_and_said(tmp_path: Path, cut: int) -> None:
    path = tmp_path / "outputs.jsonl"
    for name in "abc":
        append_line(path, output(name))
    path.write_bytes(path.read_bytes()[:-cut])
    outputs, notes = read_outputs(path)
    assert list(outputs) == ["a", "b"]
    assert "cut short" in notes[0]
    append_line(path, output("c"))
    assert list(read_outputs(path)[0]) == ["a", "b", "c"]


def test_damage_in_the_middle_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    path.write_text(json.dumps(output("a")) + "\n{broken}\n" + json.dumps(output("b")) + "\n")
    with pytest.raises(IntegrityError, match="line 2"):
        read_outputs(path)
    path.write_text(json.dumps(output("a")) + "\n" + json.dumps(output("a")) + "\n")
    with pytest.raises(IntegrityError, match="a second time"):
        read_outputs(path)


def test_a_full_disk_leaves_whole_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "outputs.jsonl"
    append_line(path, output("a"))

    def full(_file: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(StorageError, match="the disk is full"):
        append_line(path, output("b"))
    with pytest.raises(StorageError, match="the disk is full"):
        write_atomically(tmp_path / "report.json", "{}")
    monkeypatch.undo()
    assert list(read_outputs(path)[0]) == ["a"]
    assert [entry.name for entry in tmp_path.iterdir()] == ["outputs.jsonl"], "no temporary file is left"


def test_documents_refuse_nan_and_keep_the_old_one(tmp_path: Path) -> None:
    folder = RunFolder.create(tmp_path)
    folder.write_json("report.json", {"a": 1})
    with pytest.raises(ValueError, match="nan"):
        folder.write_json("report.json", {"a": float("nan")})
    assert folder.read_json("report.json") == {"a": 1}
    (folder.path / "report.json").write_text('{"a": ')
    with pytest.raises(IntegrityError, match="LG0606"):
        folder.read_json("report.json")


WRITER = """
import sys
from pathlib import Path
from lossguard.run_folder import append_line
for number in range(100_000):
    append_line(Path(sys.argv[1]), {"request_id": str(number), "ids": list(range(200)), "finish_reason": "length"})
    print(number, flush=True)
"""


def test_kill_in_the_middle_loses_no_finished_line(tmp_path: Path) -> None:
    path = tmp_path / "outputs.jsonl"
    command = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]) as writer:
        assert writer.stdout is not None
        deadline = time.monotonic() + 30
        acknowledged = -1
        while acknowledged < 20 and time.monotonic() < deadline:
            acknowledged = int(writer.stdout.readline())
        os.kill(writer.pid, signal.SIGKILL)
        acknowledged = max([acknowledged, *(int(line) for line in writer.stdout if line.strip())])
    outputs, _notes = read_outputs(path)
    assert len(outputs) >= acknowledged + 1 >= 21
