"""Weights of a folder that ``lossguard w12 convert`` has written, for engines that ask for dense ones by name."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from torch import Tensor

from lossguard_mechanisms.weights.w12.conversion_record import RECORD_NAME, read_complete_record
from lossguard_mechanisms.weights.w12.shard_reader import opened_w12


def is_converted(folder: str) -> bool:
    """Whether ``folder`` holds the record of a conversion."""
    return (Path(folder) / RECORD_NAME).is_file()


def dense_weights(folder: str) -> Iterator[tuple[str, Tensor]]:
    """Name and weights of every tensor, one in memory at a time, bit for bit those of the original.

    Raises IntegrityError LG1203, LG1204 or LG1209: every tensor passes its checksum first.
    """
    path = Path(folder)
    for name, finished in sorted(read_complete_record(path).shards.items()):
        with opened_w12(path / name, finished.header_sha256) as shard:
            for tensor in shard.metadata.tensors:
                yield tensor, shard.dense(tensor)
