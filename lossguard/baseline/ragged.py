"""Rows of differing lengths as one flat array and the places where rows end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

_ABSENT = -1


def pack(name: str, rows: Sequence[Sequence[int]], dtype: DTypeLike) -> dict[str, NDArray[Any]]:
    """``name`` holds all values, ``name.ends`` (int64) where each row ends."""
    values = np.array([value for row in rows for value in row], dtype=dtype)
    return {name: values, f"{name}.ends": np.cumsum([len(row) for row in rows], dtype=np.int64)}


def unpack(name: str, tensors: dict[str, NDArray[Any]], dtype: DTypeLike) -> list[tuple[int, ...]]:
    """Take the rows out of ``tensors``. Raises KeyError if they are absent, ValueError if they do not fit."""
    values, ends = tensors.pop(name), tensors.pop(f"{name}.ends")
    starts = np.concatenate([[0], ends[:-1]]) if len(ends) else ends
    if values.dtype != np.dtype(dtype) or ends.dtype != np.int64 or values.ndim != 1 or ends.ndim != 1:
        raise ValueError(f"{name} is {values.dtype}{list(values.shape)} with ends {ends.dtype}{list(ends.shape)}")
    if (ends < starts).any() or (int(ends[-1]) if len(ends) else 0) != len(values):
        raise ValueError(f"{name} has {len(values)} values, and its rows do not end there")
    flat = values.tolist()
    return [tuple(flat[start:end]) for start, end in zip(starts.tolist(), ends.tolist(), strict=True)]


def pack_telemetry(name: str, rows: Sequence[Sequence[float] | None]) -> dict[str, NDArray[Any]]:
    """``name`` holds all values (float64), ``name.lengths`` (int64) the number per row, -1 where a row has none."""
    values = np.array([value for row in rows if row is not None for value in row], dtype=np.float64)
    lengths = np.array([_ABSENT if row is None else len(row) for row in rows], dtype=np.int64)
    return {name: values, f"{name}.lengths": lengths}


def unpack_telemetry(name: str, tensors: dict[str, NDArray[Any]]) -> list[tuple[float, ...] | None]:
    """Take the rows out of ``tensors``. Raises KeyError if they are absent, ValueError if they do not fit."""
    values, lengths = tensors.pop(name), tensors.pop(f"{name}.lengths")
    if values.dtype != np.float64 or lengths.dtype != np.int64 or values.ndim != 1 or lengths.ndim != 1:
        raise ValueError(f"{name} is {values.dtype}{list(values.shape)}")
    if (lengths < _ABSENT).any() or int(np.maximum(lengths, 0).sum()) != len(values):
        raise ValueError(f"{name} has {len(values)} values, and its rows do not add up to them")
    rows: list[tuple[float, ...] | None] = []
    flat, start = values.tolist(), 0
    for length in lengths.tolist():
        rows.append(None if length == _ABSENT else tuple(flat[start : start + length]))
        start += max(length, 0)
    return rows
