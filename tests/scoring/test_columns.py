"""Saving, loading, concatenating and selecting forced scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from safetensors.numpy import load_file, save_file

from lossguard.errors import IntegrityError, StorageError, UsageError
from lossguard.records import ForcedScores
from lossguard.scoring.columns import COLUMN_DTYPES, SAMPLED_DTYPES, concat_scores, load_scores, save_scores, select


def random_scores(lengths: list[int], *, seed: int = 0, sampled: bool = False, top_k: int = 3) -> ForcedScores:
    generator = np.random.default_rng(seed)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    total = int(offsets[-1])
    dtypes = COLUMN_DTYPES | (SAMPLED_DTYPES if sampled else {})
    columns: dict[str, Any] = {
        name: generator.integers(0, 100, (total, top_k) if name.startswith("top_") else total).astype(dtype)
        for name, dtype in dtypes.items()
    }
    names = tuple(f"q{seed}-{index}" for index in range(len(lengths)))
    return ForcedScores(request_ids=names, offsets=offsets, **columns)


def assert_equal(one: ForcedScores, other: ForcedScores) -> None:
    assert one.request_ids == other.request_ids
    for field in dataclasses.fields(ForcedScores):
        left, right = getattr(one, field.name), getattr(other, field.name)
        if left is None or right is None or field.name == "request_ids":
            assert left == right
        else:
            assert left.dtype == right.dtype
            np.testing.assert_array_equal(left, right)


@pytest.mark.parametrize("sampled", [False, True])
@pytest.mark.parametrize("lengths", [[3, 0, 5], [], [0]])
def test_save_and_load_are_inverse(tmp_path: Path, lengths: list[int], sampled: bool) -> None:  # noqa: FBT001
    scores = random_scores(lengths, sampled=sampled)
    save_scores(tmp_path / "s.safetensors", scores)
    assert_equal(load_scores(tmp_path / "s.safetensors"), scores)
    assert [path.name for path in tmp_path.iterdir()] == ["s.safetensors"]


def test_saving_replaces_a_file_whole(tmp_path: Path) -> None:
    path = tmp_path / "s.safetensors"
    save_scores(path, random_scores([9]))
    save_scores(path, random_scores([2], seed=1))
    assert_equal(load_scores(path), random_scores([2], seed=1))


def test_a_place_that_cannot_be_written(tmp_path: Path) -> None:
    with pytest.raises(StorageError, match="LG0511"):
        save_scores(tmp_path / "absent" / "s.safetensors", random_scores([1]))


def test_a_missing_file_is_an_integrity_error(tmp_path: Path) -> None:
    with pytest.raises(IntegrityError, match="LG0510"):
        load_scores(tmp_path / "s.safetensors")


@pytest.mark.parametrize("keep", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_file_is_an_integrity_error(tmp_path: Path, keep: float) -> None:
    path = tmp_path / "s.safetensors"
    save_scores(path, random_scores([30]))
    data = path.read_bytes()
    path.write_bytes(data[: int(len(data) * keep)])
    with pytest.raises(IntegrityError):
        load_scores(path)


Tensors = dict[str, NDArray[Any]]


def as_bytes(text: bytes) -> NDArray[np.uint8]:
    return np.frombuffer(text, dtype=np.uint8)


DAMAGES: dict[str, Callable[[Tensors], Tensors]] = {
    "missing": lambda tensors: {name: column for name, column in tensors.items() if name != "gap"},
    "extra": lambda tensors: tensors | {"more": tensors["gap"]},
    "half_sampled": lambda tensors: tensors | {"entropy": tensors["gap"]},
    "dtype": lambda tensors: tensors | {"rank": tensors["rank"].astype(np.int64)},
    "length": lambda tensors: tensors | {"rank": tensors["rank"][:-1]},
    "offsets": lambda tensors: tensors | {"offsets": tensors["offsets"][::-1].copy()},
    "ids": lambda tensors: tensors | {"request_ids_json": as_bytes(b'["a"]')},
    "ids_not_json": lambda tensors: tensors | {"request_ids_json": as_bytes(b"\xff{")},
    "narrow": lambda tensors: tensors | {"top_ids": tensors["top_ids"][:, :1].copy()},
    "flat": lambda tensors: tensors | {"top_ids": tensors["gap"].astype(np.int32)},
}
METADATA = {"format": "lossguard.forced_scores", "schema_version": "1"}


@pytest.mark.parametrize("way", sorted(DAMAGES))
def test_a_file_that_is_wrong_is_an_integrity_error(tmp_path: Path, way: str) -> None:
    path = tmp_path / "s.safetensors"
    save_scores(path, random_scores([4, 3]))
    tensors = load_file(path)
    save_file(tensors, path, metadata=METADATA)
    load_scores(path)  # rewriting alone does no harm
    save_file(DAMAGES[way](tensors), path, metadata=METADATA)
    with pytest.raises(IntegrityError, match="LG0510"):
        load_scores(path)


@pytest.mark.parametrize("changes", [{"format": "other"}, {"schema_version": "999"}])
def test_a_foreign_file_is_an_integrity_error(tmp_path: Path, changes: dict[str, str]) -> None:
    path = tmp_path / "s.safetensors"
    save_scores(path, random_scores([4, 3]))
    save_file(load_file(path), path, metadata=METADATA | changes)
    with pytest.raises(IntegrityError, match="LG0510"):
        load_scores(path)


@given(st.lists(st.lists(st.integers(0, 6), max_size=4), min_size=1, max_size=4))
def test_selecting_undoes_concatenating(parts: list[list[int]]) -> None:
    scores = [random_scores(lengths, seed=index) for index, lengths in enumerate(parts)]
    together = concat_scores(scores)
    for item in scores:
        assert_equal(select(together, item.request_ids), item)


def test_select_keeps_the_given_order() -> None:
    scores = random_scores([2, 3, 1])
    picked = select(scores, ["q0-2", "q0-0"])
    assert picked.offsets.tolist() == [0, 1, 3]
    np.testing.assert_array_equal(picked.gap, np.concatenate([scores.gap[5:], scores.gap[:2]]))


def test_concat_fills_sampled_columns_of_greedy_parts() -> None:
    together = concat_scores([random_scores([2]), random_scores([3], seed=1, sampled=True)])
    assert together.pit_high is not None
    assert together.pit_high[:2].tolist() == [1.0, 1.0]
    assert together.in_support is not None
    assert together.in_support[:2].all()
    assert together.entropy is not None
    np.testing.assert_array_equal(together.entropy[2:], random_scores([3], seed=1, sampled=True).entropy)


def test_misuse_is_refused() -> None:
    scores = random_scores([1])
    misuses: tuple[Callable[[], ForcedScores], ...] = (
        lambda: concat_scores([]),
        lambda: concat_scores([scores, scores]),
        lambda: concat_scores([scores, random_scores([1], seed=1, top_k=4)]),
        lambda: select(scores, ["nobody"]),
        lambda: select(scores, ["q0-0", "q0-0"]),
    )
    for misuse in misuses:
        with pytest.raises(UsageError, match="LG0512"):
            misuse()
