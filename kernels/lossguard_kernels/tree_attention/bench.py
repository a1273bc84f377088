"""Speed of tree attention beside SDPA with a mask: ``python -m lossguard_kernels.tree_attention.bench``, on CUDA.

The layers are those of Qwen3.5-27B (24 queries and 4 keys of 256) and of Qwen3-8B (32 and 8 of 128). SDPA gets keys and
values that lie together already, repeated for no head (``enable_gqa``), and a dense mask: what it would take to gather
pages is left out in its favour. The byte floor is reading keys and values once, at the bandwidth measured first.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import torch

from lossguard_kernels.tree_attention.bench_setting import Heads, Setting
from lossguard_kernels.tree_attention.bench_sweep import error_of, references, sweep
from lossguard_kernels.w12_gemm.measuring import QUICK, microseconds, read_bandwidth

_TOLERANCE = 1e-2

SHAPES = {"27B": Heads(heads=24, key_heads=4, dim=256), "8B": Heads(heads=32, key_heads=8, dim=128)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting; microseconds of one layer."""

    shape: str
    requests: int
    nodes: int
    past: int
    ours_us: float
    sdpa_us: float
    floor_us: float
    error: float

    def line(self) -> str:
        """A row of the table."""
        sizes = f"{self.shape:4} {self.requests:4} {self.nodes:5} {self.past:6}"
        return f"{sizes} | {self.ours_us:9.1f} {self.sdpa_us:9.1f} | {self.sdpa_us / self.ours_us:6.2f} | {self.floor_us / self.ours_us:6.2f}"  # noqa: E501


HEADER = "shape  req nodes   past |   ours us   SDPA us |  times | of floor"


def measured(name: str, setting: Setting, bandwidth: float) -> Row:
    """Check, then time."""
    error = error_of(setting, references(setting))
    assert error <= _TOLERANCE, f"outputs are wrong by {error:.1e}"
    floor = setting.num_bytes / bandwidth * 1e6
    return Row(
        shape=name,
        requests=len(setting.parents),
        nodes=len(setting.parents[0]),
        past=setting.past,
        ours_us=microseconds(setting.calls(), max(10.0, 2 * floor)),
        sdpa_us=microseconds(setting.dense_calls(), max(20.0, 4 * floor), QUICK),
        floor_us=floor,
        error=error,
    )


def main() -> None:
    """Measure and print; ``--out`` keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--requests", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--nodes", nargs="*", type=int, default=[16, 64])
    parser.add_argument("--past", nargs="*", type=int, default=[1024, 8192])
    parser.add_argument("--sweep", action="store_true", help="instead: the best of a few tiles, and the shipped one")
    parser.add_argument("--out", type=Path, default=Path("tree-attention.jsonl"))
    given = parser.parse_args()
    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}: reads {bandwidth / 1e12:.2f} TB/s", flush=True)
    if not given.sweep:
        print(HEADER, flush=True)
    for name, requests, nodes, past in product(given.shapes, given.requests, given.nodes, given.past):
        setting = Setting.random(SHAPES[name], requests, nodes, past)
        if given.sweep:
            sweep(name, setting, bandwidth, given.out)
            continue
        row = measured(name, setting, bandwidth)
        print(row.line(), flush=True)
        with given.out.open("a", encoding="utf-8") as file:
            file.write(json.dumps(asdict(row)) + "\n")


if __name__ == "__main__":
    main()
