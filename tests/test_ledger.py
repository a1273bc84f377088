"""The ledger: append-only, hash-chained, the same test for the same candidate."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path

import pytest

from lossguard.errors import IntegrityError, StorageError
from lossguard.ledger import Ledger, TimingKey

KEY = TimingKey(candidate_sha256="c", stock_sha256="s", suite_sha256="u", devices=("cpu:0", "cpu:1"))


def filled(path: Path, count: int = 3) -> Ledger:
    ledger = Ledger(path)
    for number in range(count):
        ledger.append(KEY.sha256, "pair", f"run/{number}", {"value": number})
    return ledger


def test_rows_come_back_in_order(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l.sqlite")
    assert [entry.value["value"] for entry in ledger.entries(KEY.sha256, "pair")] == [0, 1, 2]
    assert ledger.entries("other") == ()
    assert ledger.head() == ledger.entries()[-1].hash


def test_an_origin_is_entered_once(tmp_path: Path) -> None:
    ledger = filled(tmp_path / "l.sqlite")
    head = ledger.head()
    assert ledger.append(KEY.sha256, "pair", "run/1", {"value": 99}) == head
    assert len(ledger.entries()) == 3


def test_the_key_does_not_depend_on_the_order_of_devices() -> None:
    from dataclasses import replace

    assert replace(KEY, devices=("cpu:1", "cpu:0")).sha256 == KEY.sha256
    for field in ("candidate_sha256", "stock_sha256", "suite_sha256"):
        assert replace(KEY, **{field: "x"}).sha256 != KEY.sha256  # type: ignore[arg-type]


@pytest.mark.parametrize("statement", ["UPDATE entries SET payload = '{}'", "DELETE FROM entries WHERE seq = 3"])
def test_the_file_refuses_changes(tmp_path: Path, statement: str) -> None:
    filled(tmp_path / "l.sqlite")
    with sqlite3.connect(tmp_path / "l.sqlite") as connection, pytest.raises(sqlite3.DatabaseError, match="append"):
        connection.execute(statement)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE entries SET payload = '{}' WHERE seq = 2",
        "UPDATE entries SET key = 'other' WHERE seq = 1",
        "DELETE FROM entries WHERE seq = 2",
        "DELETE FROM entries WHERE seq = 1",
    ],
)
@pytest.mark.parametrize("is_careful", [False, True])
def test_tampering_is_found(tmp_path: Path, statement: str, *, is_careful: bool) -> None:
    """Whether the triggers are put back afterwards or not."""
    ledger = filled(tmp_path / "l.sqlite")
    with sqlite3.connect(tmp_path / "l.sqlite") as connection:
        triggers = [sql for (sql,) in connection.execute("SELECT sql FROM sqlite_master WHERE type = 'trigger'")]
        connection.execute("DROP TRIGGER no_update")
        connection.execute("DROP TRIGGER no_delete")
        connection.execute(statement)
        for sql in triggers if is_careful else []:
            connection.execute(sql)
    with pytest.raises(IntegrityError, match="LG1008"):
        ledger.entries()
    with pytest.raises(IntegrityError, match="LG1008"):
        ledger.append(KEY.sha256, "pair", "run/9", {})


def test_a_ledger_that_was_cut_or_replaced_is_found_by_a_known_head(tmp_path: Path) -> None:
    head = filled(tmp_path / "l.sqlite").head()
    (tmp_path / "l.sqlite").unlink()
    shorter = filled(tmp_path / "l.sqlite", count=1)
    shorter.verify()
    with pytest.raises(IntegrityError, match="LG1008"):
        shorter.verify(head)


def test_a_file_that_is_no_database_is_refused(tmp_path: Path) -> None:
    (tmp_path / "l.sqlite").write_bytes(b"no database at all" * 100)
    with pytest.raises(IntegrityError, match="LG1008"):
        Ledger(tmp_path / "l.sqlite").entries()


def test_a_place_that_cannot_be_written_is_a_storage_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="LG1009"):
        Ledger(tmp_path / "file" / "l.sqlite").append("k", "pair", "o", {})


def test_writers_at_the_same_time_keep_one_chain(tmp_path: Path) -> None:
    def write(name: str) -> None:
        for number in range(8):
            Ledger(tmp_path / "l.sqlite").append(KEY.sha256, "pair", f"{name}/{number}", {})

    threads = [threading.Thread(target=write, args=(str(index),)) for index in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(Ledger(tmp_path / "l.sqlite").entries()) == 24
