"""history: every run once, kept when its folder goes, told when it cannot be read."""

from __future__ import annotations

import json
import shutil
import sqlite3
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from lossguard.cli.main import run
from lossguard.errors import StorageError, UsageError
from lossguard.history.database import History
from lossguard.history.trend import render_history, write_trend
from tests.report.sample import judged, renamed, report_of, timed

CLAIM = renamed(judged(), "x")


def write_run(root: Path, number: int, **changes: Any) -> Path:
    folder = root / f"run-{number:04d}"
    folder.mkdir(parents=True)
    started = f"2026-01-{number:02d}T00:00:00+00:00"
    report = report_of([CLAIM, timed("x")], id=folder.name, started=started)
    (folder / "report.json").write_text(json.dumps({**report, **changes}))
    return folder


def test_runs_are_kept_once_in_order_and_after_their_folder_is_gone(tmp_path: Path) -> None:
    for number in (2, 1, 3):
        write_run(tmp_path / "runs", number)
    with History.open(tmp_path / "h.sqlite") as store:
        assert store.add([tmp_path / "runs"]) == []
        assert store.add([tmp_path / "runs" / "run-0001"]) == []
        first = store.rows()
    assert [row.run for row in first] == [f"run-{at:04d}" for at in (1, 1, 2, 2, 3, 3)]
    assert {row.kind for row in first} == {"lossless", "speed"}
    assert first[0].stock_rate is not None
    assert first[1].gain == 0.12
    shutil.rmtree(tmp_path / "runs")
    with History.open(tmp_path / "h.sqlite") as store:
        assert store.rows() == first
        assert store.rows("x") == first
        assert store.rows("other") == []


def test_a_run_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    write_run(tmp_path / "runs", 1)
    write_run(tmp_path / "runs", 2, schema="other")
    write_run(tmp_path / "runs", 3, claims=[{}])
    with History.open(tmp_path / "h.sqlite") as store:
        problem, damaged = store.add([tmp_path / "runs"])
        assert len(store.rows()) == 2
        with pytest.raises(UsageError, match="LG1802"):
            store.add([tmp_path / "runs" / "run-0002"])
    assert "LG0606" in damaged
    assert "run-0002" in problem
    assert "LG1802" in problem


def test_what_is_named_must_be_there_and_an_empty_folder_adds_nothing(tmp_path: Path) -> None:
    unfinished = tmp_path / "runs" / "run-0001"
    unfinished.mkdir(parents=True)
    (unfinished / "plan.json").write_text("{}")
    with History.open(tmp_path / "h.sqlite") as store:
        assert store.add([tmp_path / "runs"]) == []
        for place in (unfinished, tmp_path / "absent"):
            with pytest.raises(UsageError, match="LG1801"):
                store.add([place])


def test_the_history_is_shown_after_all_runs_are_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    shutil.copytree(write_run(tmp_path / "made", 1), tmp_path / ".lossguard" / "run-0001")
    assert run(["history"]) == 0
    first = capsys.readouterr().out
    shutil.rmtree(tmp_path / ".lossguard" / "run-0001")
    assert run(["history"]) == 0
    assert capsys.readouterr().out == first
    assert "x/lossless" in first


def test_another_programs_file_is_left_alone(tmp_path: Path) -> None:
    other = tmp_path / "other.sqlite"
    with sqlite3.connect(other) as connection:
        connection.execute("CREATE TABLE claims (a)")
    connection.close()
    text = tmp_path / "text"
    text.write_text("no database, but a text of some length " * 20)
    for path in (other, text):
        before = path.read_bytes()
        with pytest.raises(UsageError, match="LG1804"), History.open(path):
            pass
        assert path.read_bytes() == before


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="LG1805"), History.open(tmp_path):
        pass


def test_the_command_shows_a_table_and_writes_the_trend(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pytest.importorskip("matplotlib")
    for number in (1, 2):
        write_run(tmp_path / "runs", number)
    base = ["history", str(tmp_path / "runs"), "--database", str(tmp_path / "d" / "h.sqlite")]
    assert run([*base, "--plot", str(tmp_path / "t.svg"), "--json", str(tmp_path / "h.json")]) == 0
    out = capsys.readouterr().out
    assert "x/speed" in out
    assert "+12.00 % (over +10.00 %)" in out
    assert len(json.loads((tmp_path / "h.json").read_text())["claims"]) == 4
    text = "".join(ElementTree.fromstring((tmp_path / "t.svg").read_text()).itertext())
    for words in ("run-0001", "run-0002", "mismatches, % of tokens", "gain, %", "stock"):
        assert words in text


def test_the_same_rows_give_the_same_picture(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    write_run(tmp_path / "runs", 1)
    with History.open(tmp_path / "h.sqlite") as store:
        store.add([tmp_path / "runs"])
        rows = store.rows()
    first, second = write_trend(tmp_path / "a.svg", rows), write_trend(tmp_path / "b.svg", rows)
    assert first.read_bytes() == second.read_bytes()
    assert write_trend(tmp_path / "c.svg", []).is_file()


def test_without_matplotlib_there_is_an_error_and_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lossguard.history.trend.is_available", lambda: False)
    with pytest.raises(UsageError, match="LG1803"):
        write_trend(tmp_path / "t.svg", [])
    assert not (tmp_path / "t.svg").exists()


def test_nothing_found_is_said() -> None:
    assert render_history([]) == "no finished run was found"
