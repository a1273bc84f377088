"""Results of a benchmark as lines of JSON, printed as they come and kept in a file."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import torch

from lossguard_kernels.w12_gemm.measuring import read_bandwidth


def emit(rows: Iterable[Mapping[str, float | int | str]], out: Path | None) -> None:
    """Print each row, and add it to ``out``; what a row took on the device is free before the next."""
    for row in rows:
        line = json.dumps(dict(row))
        print(line, flush=True)
        if out is not None:
            with out.open("a", encoding="utf-8") as file:
                file.write(f"{line}\n")
        torch.cuda.empty_cache()


def announced_bandwidth() -> float:
    """Bytes per second that the device reads, printed with its name."""
    rate = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}: reads {rate / 1e12:.2f} TB/s", flush=True)
    return rate
