"""A recording on disk: exact, complete, and refused where it is not what was written."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.numpy import save_file

from lossguard.errors import IntegrityError, LossguardError, StorageError, UsageError
from lossguard_mechanisms.replay.recording import Lattices, Recording
from lossguard_mechanisms.replay.store import (
    SUFFIX,
    load_recording,
    recording_paths,
    require_place,
    save_recording,
)
from tests.mechanisms.replay.toy_recordings import recording


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / f"toy{SUFFIX}"


@pytest.mark.parametrize("has_edges", [True, False])
def test_what_is_read_is_what_was_written(path: Path, *, has_edges: bool) -> None:
    written = recording(has_edges=has_edges)
    save_recording(path, written)
    found = load_recording(path)
    assert found.provenance == written.provenance
    for part in ("replies", "lattices"):
        expected, actual = getattr(written, part), getattr(found, part)
        for name in type(expected).__slots__:
            one, other = getattr(expected, name), getattr(actual, name)
            if isinstance(one, np.ndarray):
                assert one.dtype == other.dtype, name
                assert one.tobytes() == other.tobytes(), name
            else:
                assert one == other, name


def test_the_same_recording_gives_the_same_bytes(path: Path) -> None:
    save_recording(path, recording())
    first = path.read_bytes()
    save_recording(path, recording())
    assert path.read_bytes() == first
    save_recording(path, recording(seed=1))
    assert path.read_bytes() != first


@pytest.mark.parametrize(("vocab_size", "dtype"), [(2**15, "int16"), (2**15 + 1, "int32")])
def test_ids_are_as_narrow_as_the_vocabulary_allows(path: Path, vocab_size: int, dtype: str) -> None:
    toy = recording()
    last = replace(toy.lattices, chain=np.full_like(toy.lattices.chain, vocab_size - 1))
    save_recording(path, replace(toy, lattices=last, provenance=replace(toy.provenance, vocab_size=vocab_size)))
    with safe_open(path, framework="numpy") as file:
        assert {file.get_tensor(name).dtype.name for name in ("ids", "chain", "prompt_ids", "reply_ids")} == {dtype}
    assert load_recording(path).lattices.chain.max() == vocab_size - 1


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], None]) -> None:
    """Change facts and arrays of a file in place, its stored hash aside."""
    with safe_open(path, framework="numpy") as file:
        facts = json.loads(file.metadata()["lattice"])
        arrays = {name: file.get_tensor(name).copy() for name in file.keys()}  # noqa: SIM118
    change(facts, arrays)
    save_file(arrays, path, metadata={"lattice": json.dumps(facts)})


def flip_a_token(_facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    arrays["reply_ids"][3] ^= 1


def flip_a_probability(_facts: dict[str, Any], arrays: dict[str, np.ndarray]) -> None:
    arrays["edges"].view(np.uint16)[0, 0, 0, 0] ^= 1


def rename_a_request(facts: dict[str, Any], _arrays: dict[str, np.ndarray]) -> None:
    facts["request_ids"][0] = "other"


def change_the_temperature(facts: dict[str, Any], _arrays: dict[str, np.ndarray]) -> None:
    facts["provenance"]["temperature"] = 0.7


def next_version(facts: dict[str, Any], _arrays: dict[str, np.ndarray]) -> None:
    facts["version"] = 2


def other_schema(facts: dict[str, Any], _arrays: dict[str, np.ndarray]) -> None:
    facts["schema"] = "other"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (flip_a_token, "LG1603"),
        (flip_a_probability, "LG1603"),
        (rename_a_request, "LG1603"),
        (change_the_temperature, "LG1603"),
        (next_version, "LG1602"),
        (other_schema, "LG1602"),
    ],
)
def test_other_content_than_was_written_is_refused(
    path: Path, change: Callable[[dict[str, Any], dict[str, np.ndarray]], None], code: str
) -> None:
    save_recording(path, recording())
    rewrite(path, lambda _facts, _arrays: None)
    load_recording(path)  # rewriting alone harms nothing
    rewrite(path, change)
    with pytest.raises(IntegrityError) as caught:
        load_recording(path)
    assert caught.value.code == code


def test_files_that_are_no_recordings_are_refused(path: Path) -> None:
    with pytest.raises(IntegrityError, match="LG1601"):
        load_recording(path)
    save_recording(path, recording())
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(IntegrityError, match="LG1601"):
        load_recording(path)
    path.write_text("no safetensors at all")
    with pytest.raises(IntegrityError, match="LG1601"):
        load_recording(path)
    save_file({"weight": np.zeros(3)}, path)
    with pytest.raises(IntegrityError, match="LG1602"):
        load_recording(path)
    save_file({"weight": np.zeros(3)}, path, metadata={"lattice": "[1]"})
    with pytest.raises(IntegrityError, match="LG1602"):
        load_recording(path)


def worse(lattices: Lattices, name: str, value: float) -> Lattices:
    """The same with one number changed at the last place of an array."""
    array = getattr(lattices, name).copy()
    array.reshape(-1)[-1] = value
    return replace(lattices, **{name: array})


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda toy: replace(toy, lattices=toy.lattices.rows(slice(3, None))), "positions of"),
        (lambda toy: replace(toy, lattices=worse(toy.lattices, "log_probs", 0.0)), "not best first"),
        (lambda toy: replace(toy, lattices=worse(toy.lattices, "log_probs", np.nan)), "no log-probabilities"),
        (lambda toy: replace(toy, lattices=worse(toy.lattices, "edges", 0.5)), "no log-probabilities"),
        (lambda toy: replace(toy, lattices=worse(toy.lattices, "confidence", 1.5)), "no probabilities"),
        (lambda toy: replace(toy, lattices=worse(toy.lattices, "ids", 40)), "outside the vocabulary"),
        (lambda toy: replace(toy, lattices=worse(toy.lattices, "ids", toy.lattices.ids[-1, -1, 0])), "stands twice"),
        (lambda toy: replace(toy, lattices=replace(toy.lattices, edges=None)), "in part"),
        (lambda toy: replace(toy, lattices=replace(toy.lattices, chain=toy.lattices.chain[:, 1:])), "chain have shape"),
        (lambda toy: replace(toy, replies=replace(toy.replies, sets=("one",))), "1 sets"),
        (
            lambda toy: replace(toy, replies=replace(toy.replies, reply_offsets=toy.replies.reply_offsets + 1)),
            "reply offsets",
        ),
    ],
)
def test_arrays_that_do_not_fit_are_never_written(
    path: Path, change: Callable[[Recording], Recording], problem: str
) -> None:
    with pytest.raises(IntegrityError, match=problem) as caught:
        save_recording(path, change(recording()))
    assert caught.value.code == "LG1604"
    assert not path.exists()


def test_a_write_that_fails_leaves_the_old_file(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    save_recording(path, recording())
    before = path.read_bytes()

    def no_space(_descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", no_space)
    with pytest.raises(StorageError, match="LG1605"):
        save_recording(path, recording(seed=2))
    assert path.read_bytes() == before
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_place_that_cannot_be_written_is_known_before(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match="LG1605"):
        require_place(tmp_path / "file" / f"toy{SUFFIX}")
    require_place(tmp_path / "new" / f"toy{SUFFIX}")
    assert list((tmp_path / "new").iterdir()) == []


def test_a_folder_stands_for_its_recordings(tmp_path: Path, path: Path) -> None:
    with pytest.raises(UsageError, match="LG1606"):
        recording_paths(tmp_path)
    save_recording(path, recording())
    save_recording(path.with_name(f"a{SUFFIX}"), recording())
    (tmp_path / "notes.txt").write_text("")
    assert [found.name for found in recording_paths(tmp_path)] == [f"a{SUFFIX}", f"toy{SUFFIX}"]
    assert recording_paths(path) == (path,)
    with pytest.raises(LossguardError, match="LG1606"):
        recording_paths(tmp_path / "nothing")


def test_rounding_keeps_the_order_and_little_is_lost() -> None:
    """What docs/replay.md says of float16: 1 part in 2,048 of a log-probability of any size that occurs."""
    values = -np.logspace(-4, 3, 4001)
    rounded = values.astype(np.float16)
    assert (np.diff(rounded.astype(np.float64)) <= 0).all()
    assert np.abs(rounded / values - 1).max() <= 2**-11 * (1 + 1e-9)
