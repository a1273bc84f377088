"""Conversion of model folders: complete, resumable, and never at the source's expense."""

from __future__ import annotations

import errno
import hashlib
import json
import os
import resource
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch
from filelock import FileLock
from safetensors import safe_open
from safetensors.torch import save_file

from lossguard.errors import IntegrityError, LossguardError, StorageError, UsageError
from lossguard_mechanisms.weights.w12 import convert as convert_module
from lossguard_mechanisms.weights.w12.conversion_record import read_record
from lossguard_mechanisms.weights.w12.convert import convert
from lossguard_mechanisms.weights.w12.info import model_info
from lossguard_mechanisms.weights.w12.policy import decide
from lossguard_mechanisms.weights.w12.shard_writer import ShardWriter
from lossguard_mechanisms.weights.w12.verify import verify
from tests.mechanisms.weights.w12.toy_weights import gaussian

FIRST, SECOND = "model-00001-of-00002", "model-00002-of-00002"


def hashes(folder: Path) -> dict[str, str]:
    files = (path for path in sorted(folder.rglob("*")) if path.is_file())
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in files}


@pytest.fixture(autouse=True)
def source_stays_untouched(two_shards: Path) -> Iterator[None]:
    """Whatever a test does, the model is what it was."""
    before = hashes(two_shards)
    yield
    if (two_shards / "touched").exists():
        return
    assert hashes(two_shards) == before


def test_every_bit_and_every_file_arrives(two_shards: Path, tmp_path: Path) -> None:
    result = convert(two_shards, tmp_path / "out")
    assert (result.num_written, result.num_kept) == (2, 0)
    report = verify(tmp_path / "out", two_shards)
    assert report.is_equal
    assert (report.num_tensors, report.num_files) == (7, 2)
    names = {path.name for path in (tmp_path / "out").iterdir()}
    shards = {f"{FIRST}.w12.safetensors", f"{SECOND}.w12.safetensors"}
    assert names == shards | {"config.json", "tokenizer.json", "w12.json"}
    config = json.loads((tmp_path / "out" / "config.json").read_text())
    assert config["quantization_config"] == {"quant_method": "w12", "version": 1}
    assert config["hidden_size"] == 64


def test_each_tensor_says_what_became_of_it(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    found = {tensor.name: tensor for tensor in model_info(tmp_path / "out").tensors}
    assert {name for name, tensor in found.items() if tensor.is_w12} == {"a.weight", "b.weight"}
    assert "would escape" in found["wild"].reason
    assert "float32" in found["scale"].reason


def test_arrays_start_where_their_items_may(two_shards: Path, tmp_path: Path) -> None:
    """Kernels read the mapped file: planes start at multiples of 64, all others at multiples of their item."""
    convert(two_shards, tmp_path / "out")
    path = tmp_path / "out" / f"{SECOND}.w12.safetensors"
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    assert (8 + length) % 64 == 0
    sizes = {"I32": 4, "I16": 2, "BF16": 2, "F32": 4, "U8": 1, "BOOL": 1}
    header = json.loads(data[8 : 8 + length])
    entries = {name: entry for name, entry in header.items() if name != "__metadata__"}
    assert all(entry["data_offsets"][0] % sizes[entry["dtype"]] == 0 for entry in entries.values())
    assert entries["b.weight_w12_hi"]["data_offsets"][0] % 64 == 0
    with safe_open(path, framework="pt") as file:
        assert file.get_tensor("b.weight_w12_hi").shape == (3, 16 * 144)


def test_the_same_model_gives_the_same_bytes(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "one")
    convert(two_shards, tmp_path / "two")
    assert hashes(tmp_path / "one") == hashes(tmp_path / "two")


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


class Bar:
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


@pytest.mark.parametrize("keep", [0, 5, 200, -1])
def test_a_truncated_source_is_named(keep: int, two_shards: Path, tmp_path: Path) -> None:
    shard = two_shards / f"{SECOND}.safetensors"
    shard.write_bytes(shard.read_bytes()[:keep])
    (two_shards / "touched").touch()
    with pytest.raises(IntegrityError, match=shard.name) as caught:
        convert(two_shards, tmp_path / "out")
    assert caught.value.code == "LG1203"
    assert not (tmp_path / "out").exists()


def refused(source: Path, target: Path) -> str:
    with pytest.raises(LossguardError) as caught:
        convert(source, target)
    return caught.value.code


def test_sources_that_cannot_be_converted(two_shards: Path, tmp_path: Path) -> None:
    (two_shards / "touched").touch()
    out = tmp_path / "out"
    assert refused(tmp_path / "absent", out) == "LG1207"
    (two_shards / f"{FIRST}.safetensors").rename(tmp_path / "away")
    assert refused(two_shards, out) == "LG1207", "a shard that the index names is missing"
    (two_shards / f"{SECOND}.safetensors").unlink()
    (two_shards / "model.safetensors.index.json").unlink()
    assert refused(two_shards, out) == "LG1207", "no weights at all"
    (tmp_path / "away").rename(two_shards / "model.safetensors")
    (two_shards / "config.json").write_text('{"quantization_config": {"quant_method": "fp8"}}')
    assert refused(two_shards, out) == "LG1207", "quantized already"
    (two_shards / "config.json").unlink()
    assert refused(two_shards, out) == "LG1207"
    assert not out.exists()


def test_a_model_of_another_dtype_is_refused(two_shards: Path, tmp_path: Path) -> None:
    folder = tmp_path / "half"
    folder.mkdir()
    (folder / "config.json").write_text("{}")
    save_file({"a": torch.zeros(16, 16, dtype=torch.float16), "b": gaussian(16)}, folder / "model.safetensors")
    with pytest.raises(UsageError, match="1 BF16 vectors, 1 F16 matrices") as caught:
        convert(folder, tmp_path / "out")
    assert caught.value.code == "LG1206"
    assert not (tmp_path / "out").exists()


def test_targets_that_are_not_ours_stay_as_they_are(two_shards: Path, tmp_path: Path) -> None:
    assert refused(two_shards, two_shards) == "LG1208"
    assert refused(two_shards, two_shards / "sub") == "LG1208"
    file = tmp_path / "file"
    file.write_text("mine")
    assert refused(two_shards, file) == "LG1208"
    full = tmp_path / "full"
    full.mkdir()
    (full / "precious").write_text("mine")
    assert refused(two_shards, full) == "LG1208"
    assert file.read_text() == (full / "precious").read_text() == "mine"


def test_another_limit_does_not_continue_a_conversion(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    with pytest.raises(UsageError, match=r"limit of 0\.02") as caught:
        convert(two_shards, tmp_path / "out", escape_limit=0.01)
    assert caught.value.code == "LG1208"


def test_other_weights_do_not_continue_a_conversion(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    (two_shards / "touched").touch()
    shard = two_shards / f"{FIRST}.safetensors"
    data = bytearray(shard.read_bytes())
    data[-1] ^= 1
    shard.write_bytes(data)
    assert refused(two_shards, tmp_path / "out") == "LG1211"


def test_a_source_that_changes_meanwhile_is_noticed(
    two_shards: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def meddling(weight: torch.Tensor, limit: float) -> object:
        os.utime(two_shards / f"{FIRST}.safetensors", (1, 1))
        return decide(weight, limit)

    monkeypatch.setattr(convert_module, "decide", meddling)
    assert refused(two_shards, tmp_path / "out") == "LG1207"
    assert read_record(tmp_path / "out").shards == {}


def test_two_conversions_do_not_write_into_one_folder(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    with FileLock(tmp_path / "out" / ".w12.lock"):
        assert refused(two_shards, tmp_path / "out") == "LG1208"


def test_a_damaged_record_is_named(two_shards: Path, tmp_path: Path) -> None:
    convert(two_shards, tmp_path / "out")
    (tmp_path / "out" / "w12.json").write_text("{")
    assert refused(two_shards, tmp_path / "out") == "LG1203"
    (tmp_path / "out" / "w12.json").write_text('{"format": "lossguard-w12", "version": 2}')
    assert refused(two_shards, tmp_path / "out") == "LG1209"
