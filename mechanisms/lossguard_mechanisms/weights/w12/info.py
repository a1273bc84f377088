"""What a converted model takes: from its headers alone, or with histograms from its planes."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from lossguard_mechanisms.weights.w12.codec import decode
from lossguard_mechanisms.weights.w12.conversion_record import read_complete_record
from lossguard_mechanisms.weights.w12.layout import PARTS
from lossguard_mechanisms.weights.w12.metadata import TensorEntry, part_name, stored_names
from lossguard_mechanisms.weights.w12.shard_reader import W12Shard, opened_w12
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor

_ITEM_BITS = {"BOOL": 8, "U8": 8, "I8": 8, "F8_E4M3": 8, "F8_E5M2": 8, "F8_E8M0": 8, "I16": 16, "U16": 16, "F16": 16}
_ITEM_BITS |= {"BF16": 16, "F32": 32, "I32": 32, "U32": 32, "F64": 64, "I64": 64, "U64": 64, "C64": 64}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """One tensor of the original and what it takes now."""

    name: str
    shape: tuple[int, ...]
    is_w12: bool
    has_base_per_row: bool
    num_weights: int
    num_escapes: int
    num_bits: int
    reason: str

    @property
    def bits_per_weight(self) -> float:
        """Stored bits for each weight; 0 for an empty tensor."""
        return self.num_bits / max(1, self.num_weights)

    @property
    def escape_fraction(self) -> float:
        """Share of weights kept verbatim beside the planes."""
        return self.num_escapes / max(1, self.num_weights)


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """All tensors, and the bytes of all shards with their headers."""

    tensors: tuple[TensorInfo, ...]
    num_file_bytes: int

    @property
    def bits_per_w12_weight(self) -> float:
        """Over all tensors in W12."""
        return self._of_w12("num_bits")

    @property
    def escape_fraction(self) -> float:
        """Over all tensors in W12."""
        return self._of_w12("num_escapes")

    @property
    def bits_per_weight(self) -> float:
        """Of the files, over all tensors."""
        return 8 * self.num_file_bytes / max(1, sum(tensor.num_weights for tensor in self.tensors))

    def to_json(self) -> dict[str, Any]:
        """As ``lossguard w12 info --json`` writes it."""
        derived = ("bits_per_weight", "escape_fraction")
        return {
            "bits_per_w12_weight": self.bits_per_w12_weight,
            "bits_per_weight": self.bits_per_weight,
            "escape_fraction": self.escape_fraction,
            "num_file_bytes": self.num_file_bytes,
            "tensors": [asdict(one) | {name: getattr(one, name) for name in derived} for one in self.tensors],
        }

    def _of_w12(self, name: str) -> float:
        chosen = [tensor for tensor in self.tensors if tensor.is_w12]
        return float(sum(getattr(one, name) for one in chosen) / max(1, sum(one.num_weights for one in chosen)))


def model_info(folder: Path) -> ModelInfo:
    """Read the headers of a converted model. Raises IntegrityError LG1203, LG1204 or LG1209."""
    record = read_complete_record(folder)
    tensors: list[TensorInfo] = []
    for name, finished in sorted(record.shards.items()):
        with opened_w12(folder / name, finished.header_sha256) as shard:
            tensors += [_tensor_info(shard, tensor, entry) for tensor, entry in shard.metadata.tensors.items()]
    num_bytes = sum(finished.size_bytes for finished in record.shards.values())
    return ModelInfo(tensors=tuple(tensors), num_file_bytes=num_bytes)


def exponent_counts(folder: Path) -> list[int]:
    """How many W12 weights have each of the 256 exponents; decodes the whole model. Raises as ``model_info``."""
    total: Counter[int] = Counter()
    record = read_complete_record(folder)
    for name, finished in sorted(record.shards.items()):
        with opened_w12(folder / name, finished.header_sha256) as shard:
            for tensor in shard.metadata.tensors:
                stored = shard.stored(tensor)
                if isinstance(stored, W12Tensor):
                    exponents = decode(stored).view(torch.int16).reshape(-1) >> 7 & 0xFF
                    total.update(dict(enumerate(torch.bincount(exponents, minlength=256).tolist())))
    return [total[exponent] for exponent in range(256)]


def _tensor_info(shard: W12Shard, name: str, entry: TensorEntry) -> TensorInfo:
    sizes = {stored: shard.stored_shape(stored) for stored in stored_names(name, entry)}
    return TensorInfo(
        name=name,
        shape=entry.shape,
        is_w12=entry.is_w12,
        has_base_per_row=entry.is_w12 and sizes[part_name(name, PARTS[-1])][1] > 1,
        num_weights=entry.num_weights,
        num_escapes=entry.num_escapes,
        num_bits=sum(_ITEM_BITS[dtype] * count for dtype, count in sizes.values()),
        reason=entry.reason,
    )
