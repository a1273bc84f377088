"""Comparing a converted model with its original, bit for bit."""

from __future__ import annotations

import filecmp
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor

from lossguard.listener import Listener, SilentListener
from lossguard_mechanisms.weights.w12.conversion_record import SHARD_SUFFIX, read_complete_record
from lossguard_mechanisms.weights.w12.model_folder import CONFIG_NAME, open_model, read_object
from lossguard_mechanisms.weights.w12.shard_reader import W12Shard, opened, opened_w12


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A tensor or file that is not the original's, and how."""

    name: str
    problem: str


@dataclass(frozen=True, slots=True, kw_only=True)
class VerifyReport:
    """What was compared; ``differences`` is empty if every bit is equal."""

    num_tensors: int
    num_weights: int
    num_files: int
    differences: tuple[Difference, ...]

    @property
    def is_equal(self) -> bool:
        """Whether something was compared and nothing differs."""
        return self.num_tensors > 0 and not self.differences


def verify(target: Path, source: Path, *, listener: Listener | None = None) -> VerifyReport:
    """Decode every tensor of ``target`` and compare it with ``source``; compare all other files too.

    Raises IntegrityError LG1203, LG1204 or LG1209 if the conversion is damaged or has not ended, UsageError LG1207.
    """
    told = listener or SilentListener()
    folder, record, tally = open_model(source), read_complete_record(target), _Tally()
    expected = {shard.name.removesuffix(".safetensors") + SHARD_SUFFIX: shard for shard in folder.shards}
    for name in sorted(expected.keys() ^ record.shards.keys()):
        problem = "the original has no such shard" if name in record.shards else "it was never converted"
        tally.note(name, problem)
    with told.stage("verify", folder.num_bytes, "bytes") as advance:
        for name in sorted(expected.keys() & record.shards.keys()):
            with opened_w12(target / name, record.shards[name].header_sha256) as shard:
                _compare_shard(shard, expected[name], tally, advance)
    for file in folder.side_files:
        tally.note(file.name, _file_problem(file, target / file.name))
    return VerifyReport(
        num_tensors=tally.num_tensors,
        num_weights=tally.num_weights,
        num_files=len(folder.side_files),
        differences=tuple(tally.differences),
    )


@dataclass(slots=True)
class _Tally:
    """What has been compared so far."""

    num_tensors: int = 0
    num_weights: int = 0
    differences: list[Difference] = field(default_factory=list)

    def note(self, name: str, problem: str | None) -> None:
        """Remember a problem, if there is one."""
        if problem is not None:
            self.differences.append(Difference(name=name, problem=problem))


def _compare_shard(shard: W12Shard, source: Path, tally: _Tally, advance: Callable[[int], None]) -> None:
    num_left = source.stat().st_size
    with opened(source) as original:
        names = set(original.keys())
        for name in sorted(names ^ shard.metadata.tensors.keys()):
            tally.note(name, "it is missing" if name in names else "the original has no such tensor")
        for name in sorted(names & shard.metadata.tensors.keys()):
            weight = original.get_tensor(name)
            tally.note(name, tensor_problem(shard.dense(name), weight))
            tally.num_tensors += 1
            tally.num_weights += weight.numel()
            advance(weight.nbytes)
            num_left -= weight.nbytes
    advance(num_left)  # the header, and tensors that only the original has


def tensor_problem(found: Tensor, expected: Tensor) -> str | None:
    """How a tensor differs from another in type, shape or any bit, or None."""
    if found.dtype != expected.dtype or found.shape != expected.shape:
        return f"{found.dtype} {list(found.shape)} instead of {expected.dtype} {list(expected.shape)}"
    if torch.equal(_bytes(found), _bytes(expected)):
        return None
    differs = (_bytes(found) != _bytes(expected)).any(dim=1)
    num_different, first = int(differs.sum()), int(differs.nonzero()[0])
    return f"{num_different:,} of {expected.numel():,} weights differ, the first at flat index {first:,}"


def _bytes(weight: Tensor) -> Tensor:
    """Bytes of each weight, uint8 [weights, bytes]."""
    return weight.contiguous().reshape(-1).view(torch.uint8).view(-1, weight.element_size())


def _file_problem(file: Path, copy: Path) -> str | None:
    if not copy.is_file():
        return "the copy is missing"
    if file.name == CONFIG_NAME:
        config = read_object(copy)
        config.pop("quantization_config", None)
        return None if config == read_object(file) else "it differs beyond its quantization_config"
    return None if filecmp.cmp(file, copy, shallow=False) else "its bytes differ"
