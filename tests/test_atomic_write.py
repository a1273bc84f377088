"""A reader sees the old file or the new one, and a write that fails leaves nothing of itself."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from lossguard.atomic_write import replace_file, require_replaceable


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "file"
    contents = [bytes([number]) * 100_000 for number in range(8)]
    replace_file(path, contents[0])
    seen: set[bytes] = set()
    writers = [threading.Thread(target=replace_file, args=(path, content)) for content in contents]
    for writer in writers:
        writer.start()
    while any(writer.is_alive() for writer in writers):
        seen.add(path.read_bytes())
    seen.add(path.read_bytes())
    assert seen <= set(contents)
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


@pytest.mark.parametrize("function", ["os.fsync", "pathlib.Path.replace"])
def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, function: str) -> None:
    path = replace_file(tmp_path / "file", b"old")

    def full(*_arguments: object) -> None:
        raise OSError(28, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(function, full)
        with pytest.raises(OSError, match="No space left"):
            replace_file(path, b"new")
    assert path.read_bytes() == b"old"
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_the_rename_is_made_durable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[bool] = []
    monkeypatch.setattr("os.fsync", lambda descriptor: synced.append(stat.S_ISDIR(os.fstat(descriptor).st_mode)))
    replace_file(tmp_path / "file", b"x")
    assert synced == [False, True], "first the file, then its folder"


def test_what_can_be_written_is_known_beforehand(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", b"x")
    require_replaceable(tmp_path / "file")
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]
    with pytest.raises(OSError, match="No such file"):
        require_replaceable(tmp_path / "nowhere" / "file")
    with pytest.raises(OSError, match="Not a directory"):
        require_replaceable(tmp_path / "file" / "below")
