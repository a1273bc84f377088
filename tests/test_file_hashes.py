"""The cache of file hashes: what is read again, what is not, and what is refused."""

from __future__ import annotations

import hashlib
import json
import os
from pathlib import Path

import pytest

from lossguard import file_hashes
from lossguard.errors import IntegrityError, StorageError, UsageError
from lossguard.file_hashes import CACHE_NAME, FileState, HashCache, combined_sha256, stable_sha256


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"weights" * 1_000)
    return path


@pytest.fixture
def cache(tmp_path: Path) -> HashCache:
    return HashCache(tmp_path / "cache")


def test_hash_is_sha256_of_the_bytes(weights: Path, cache: HashCache) -> None:
    assert cache.sha256(weights) == hashlib.sha256(weights.read_bytes()).hexdigest()


def test_an_unchanged_file_is_read_once(weights: Path, cache: HashCache, monkeypatch: pytest.MonkeyPatch) -> None:
    first = cache.sha256(weights)
    monkeypatch.setattr(file_hashes, "stable_sha256", lambda path, state: pytest.fail(f"{path} was read again"))
    assert cache.sha256(weights) == first


def test_a_changed_file_of_the_same_size_is_read_again(weights: Path, cache: HashCache) -> None:
    first = cache.sha256(weights)
    status = weights.stat()
    weights.write_bytes(b"WEIGHTS" * 1_000)
    os.utime(weights, ns=(status.st_atime_ns, status.st_mtime_ns + 1))
    assert cache.sha256(weights) == hashlib.sha256(b"WEIGHTS" * 1_000).hexdigest() != first


def test_a_replaced_file_is_read_again(weights: Path, cache: HashCache) -> None:
    """Another inode under the same path, size and time, as ``mv`` leaves it."""
    first = cache.sha256(weights)
    status = weights.stat()
    other = weights.with_suffix(".new")
    other.write_bytes(b"WEIGHTS" * 1_000)
    os.utime(other, ns=(status.st_atime_ns, status.st_mtime_ns))
    other.replace(weights)
    assert cache.sha256(weights) != first


def test_entries_of_files_that_are_gone_are_dropped(tmp_path: Path, weights: Path, cache: HashCache) -> None:
    cache.sha256(weights)
    weights.unlink()
    other = tmp_path / "other.safetensors"
    other.write_bytes(b"x")
    cache.sha256(other)
    assert list(json.loads((cache.folder / CACHE_NAME).read_text())) == [str(other)]


@pytest.mark.parametrize("content", ["{", "[]", '{"a": 1}'])
def test_a_damaged_cache_is_refused(weights: Path, cache: HashCache, content: str) -> None:
    cache.folder.mkdir()
    (cache.folder / CACHE_NAME).write_text(content)
    with pytest.raises(IntegrityError, match="LG0101"):
        cache.sha256(weights)


def test_a_cache_that_cannot_be_written_is_an_error(tmp_path: Path, weights: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    with pytest.raises(StorageError, match="LG0102"):
        HashCache(tmp_path / "cache").sha256(weights)


def test_a_file_that_changes_while_it_is_read_is_refused(weights: Path) -> None:
    state = FileState.of(weights)
    weights.write_bytes(b"a later state")
    with pytest.raises(IntegrityError, match="LG0103"):
        stable_sha256(weights, state)


def test_a_link_of_an_unfinished_download_is_refused(tmp_path: Path, cache: HashCache) -> None:
    (tmp_path / "link.safetensors").symlink_to(tmp_path / "blobs" / "absent")
    with pytest.raises(UsageError, match="LG0108"):
        cache.sha256(tmp_path / "link.safetensors")


def test_combined_hash_ignores_order_and_sees_every_part() -> None:
    assert combined_sha256(["b", "a"]) == combined_sha256(["a", "b"])
    assert combined_sha256(["a", "b"]) != combined_sha256(["a", "b", "b"])
