"""Conversions that were stopped, by a full disk, an interrupt or a kill, go on from where they were."""

from __future__ import annotations

import errno
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from lossguard.errors import StorageError
from lossguard.listener import SilentListener
from lossguard_mechanisms.weights.w12.conversion_record import read_record
from lossguard_mechanisms.weights.w12.convert import convert
from lossguard_mechanisms.weights.w12.shard_writer import ShardWriter
from lossguard_mechanisms.weights.w12.verify import verify
from tests.mechanisms.weights.w12.converted_folders import FIRST, SECOND, hashes

pytestmark = pytest.mark.usefixtures("source_stays_untouched")


def fail_on_call(monkeypatch: pytest.MonkeyPatch, number: int, error: BaseException) -> None:
    """The writer breaks while it adds arrays for the ``number``-th time."""
    calls = iter(range(1, 1000))
    add = ShardWriter.add

    def failing(self: ShardWriter, arrays: dict[str, torch.Tensor]) -> None:
        if next(calls) == number:
            raise error
        add(self, arrays)

    monkeypatch.setattr(ShardWriter, "add", failing)


@pytest.mark.parametrize("number", [1, 3, 9, 13])
def test_no_space_left_is_an_error_and_can_be_resumed(
    number: int, two_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(two_shards, tmp_path / "whole")
    with monkeypatch.context() as patch:
        fail_on_call(patch, number, OSError(errno.ENOSPC, "No space left on device"))
        with pytest.raises(StorageError, match="No space left on device") as caught:
            convert(two_shards, tmp_path / "out")
    assert caught.value.code == "LG1205"
    assert not list((tmp_path / "out").glob(".*.partial")), "what was half written is gone"
    done = len(read_record(tmp_path / "out").shards)
    result = convert(two_shards, tmp_path / "out")
    assert (result.num_kept, result.num_written) == (done, 2 - done)
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


@contextmanager
def files_no_larger_than(num_bytes: int) -> Iterator[None]:
    """The kernel refuses to write beyond, as it does on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("part_of_a_shard", [0.02, 0.5, 0.99])
def test_the_kernel_refuses_a_write(part_of_a_shard: float, two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "whole")
    size = (tmp_path / "whole" / f"{FIRST}.w12.safetensors").stat().st_size
    with files_no_larger_than(int(part_of_a_shard * size)), pytest.raises(StorageError, match="too large") as caught:
        convert(two_shards, tmp_path / "out")
    assert caught.value.code == "LG1205"
    assert {path.name for path in (tmp_path / "out").iterdir()} <= {"w12.json", ".w12.lock"}
    convert(two_shards, tmp_path / "out")
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


def test_both_halves_of_a_conversion_were_interrupted_above(
    two_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Guards the parametrisation: 9 calls are within the first shard or the start of the second, 13 within it."""
    counts: list[str] = []
    add = ShardWriter.add

    def counting(self: ShardWriter, arrays: dict[str, torch.Tensor]) -> None:
        counts.append(self.path.name)
        add(self, arrays)

    monkeypatch.setattr(ShardWriter, "add", counting)
    convert(two_shards, tmp_path / "out")
    assert counts[2].startswith(FIRST)
    assert counts[12].startswith(SECOND)
    assert len(counts) >= 13


def test_an_interrupt_keeps_finished_shards(two_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        fail_on_call(patch, 13, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            convert(two_shards, tmp_path / "out")
    assert convert(two_shards, tmp_path / "out").num_kept == 1
    assert verify(tmp_path / "out", two_shards).is_equal


KILLED_IN_THE_SECOND_SHARD = """
import os, signal, sys
from pathlib import Path
from lossguard_mechanisms.weights.w12 import convert as module
from lossguard_mechanisms.weights.w12.shard_writer import ShardWriter

calls, add = iter(range(1, 1000)), ShardWriter.add

def deadly(self, arrays):
    add(self, arrays)
    if next(calls) == 13:
        os.kill(os.getpid(), signal.SIGKILL)

ShardWriter.add = deadly
module.convert(Path(sys.argv[1]), Path(sys.argv[2]))
"""


def test_a_process_that_was_killed_is_continued(two_shards: Path, tmp_path: Path) -> None:
    """No clean-up ran: half a file and the lock's file are there, and neither stands in the way."""
    command = [sys.executable, "-c", KILLED_IN_THE_SECOND_SHARD, str(two_shards), str(tmp_path / "out")]
    done = subprocess.run(command, check=False, capture_output=True)
    assert done.returncode == -signal.SIGKILL, done.stderr.decode()
    assert {path.name for path in (tmp_path / "out").glob(".*")} == {f".{SECOND}.w12.safetensors.partial", ".w12.lock"}
    assert convert(two_shards, tmp_path / "out").num_kept == 1
    convert(two_shards, tmp_path / "whole")
    assert hashes(tmp_path / "out") == hashes(tmp_path / "whole")


class Bar(SilentListener):
    """A listener that remembers: titles with their totals, how far each came, and messages."""

    def __init__(self) -> None:
        self.totals: list[tuple[str, int, str]] = []
        self.steps: list[int] = []
        self.messages: list[str] = []

    def message(self, text: str) -> None:
        self.messages.append(text)

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        self.totals.append((title, total, unit))
        yield self.steps.append


def test_the_bar_goes_to_the_end_also_when_resumed(two_shards: Path, tmp_path: Path) -> None:
    num_bytes = sum(path.stat().st_size for path in two_shards.glob("*.safetensors"))
    bar, resumed, verified = Bar(), Bar(), Bar()
    convert(two_shards, tmp_path / "out", listener=bar)
    assert bar.totals == [("convert", num_bytes, "bytes")]
    assert sum(bar.steps) == num_bytes
    assert len(bar.steps) >= 7, "it moves with every tensor"
    (tmp_path / "out" / f"{SECOND}.w12.safetensors").unlink()
    convert(two_shards, tmp_path / "out", listener=resumed)
    assert sum(resumed.steps) == num_bytes
    assert resumed.messages == [f"{FIRST}.w12.safetensors: kept"]
    assert verify(tmp_path / "out", two_shards, listener=verified).is_equal
    assert sum(verified.steps) == num_bytes


def test_a_finished_shard_that_was_cut_is_written_again(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    cut(tmp_path / "out" / f"{FIRST}.w12.safetensors", 100)
    result = convert(two_shards, tmp_path / "out")
    assert (result.num_kept, result.num_written) == (1, 1)
    assert verify(tmp_path / "out", two_shards).is_equal


def test_a_repair_that_is_interrupted_is_not_complete(
    two_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    convert(two_shards, tmp_path / "out")
    for name in (FIRST, SECOND):
        (tmp_path / "out" / f"{name}.w12.safetensors").unlink()
    with monkeypatch.context() as patch:
        fail_on_call(patch, 13, KeyboardInterrupt())
        with pytest.raises(KeyboardInterrupt):
            convert(two_shards, tmp_path / "out")
    assert not read_record(tmp_path / "out").is_complete
    assert convert(two_shards, tmp_path / "out").num_kept == 1
    assert verify(tmp_path / "out", two_shards).is_equal


def cut(path: Path, num_bytes: int) -> None:
    path.write_bytes(path.read_bytes()[:-num_bytes])
