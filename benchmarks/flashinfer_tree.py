"""Tree attention over pages beside FlashInfer's: ``python -m benchmarks.flashinfer_tree``, on a CUDA device.

FlashInfer's is ``BatchPrefillWithPagedKVCacheWrapper`` (fa2) with a mask of each node's ancestors; it is planned ahead
of time, in its favour. It is compiled on first use, for ``TORCH_CUDA_ARCH_LIST`` (``--compile-only`` does no more).
Pages, trees and layers are those of ``lossguard_kernels.tree_attention.bench``. Outputs are compared first.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import flashinfer
import torch
from torch import Tensor

from benchmarks.json_lines import announced_bandwidth, emit
from lossguard_kernels.tree_attention import bench, naive
from lossguard_kernels.tree_attention.bench_setting import Heads, Setting
from lossguard_kernels.tree_attention.operation import attend
from lossguard_kernels.w12_gemm.measuring import QUICK, Call, microseconds

_TOLERANCE = 0.02
_WORK_BYTES = 256 << 20  # FlashInfer's own memory

Pool = tuple[Tensor, Tensor]  # keys and values, each [pages, key heads, page_size, dim]


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting; microseconds of one layer."""

    shape: str
    requests: int
    nodes: int
    past: int
    difference: float  # the largest between both outputs, relative to the largest of ours
    ours_us: float
    flashinfer_us: float


def planned(setting: Setting, shape: Heads) -> Callable[[Tensor, Pool], Tensor]:
    """FlashInfer's attention of the setting's queries over one of its pools."""
    requests, num_pages = setting.pages.table.shape
    nodes, page_size = len(setting.parents[0]), setting.pools[0][0].shape[2]
    work = torch.empty(_WORK_BYTES, dtype=torch.uint8, device="cuda")
    wrapper = flashinfer.BatchPrefillWithPagedKVCacheWrapper(work, "HND", backend="fa2")
    steps = torch.arange(requests + 1, dtype=torch.int32, device="cuda")
    last = (setting.past + nodes - 1) % page_size + 1  # positions of a request's last page
    wrapper.plan(
        steps * nodes,
        steps * num_pages,
        setting.pages.table.flatten().int(),
        torch.full((requests,), last, dtype=torch.int32, device="cuda"),
        shape.heads,
        shape.key_heads,
        shape.dim,
        page_size,
        custom_mask=naive.visible(setting.parents[0], setting.past).cuda().flatten().repeat(requests),
        q_data_type=torch.bfloat16,
        kv_data_type=torch.bfloat16,
    )
    run: Callable[[Tensor, Pool], Tensor] = wrapper.run
    return run


def measured(name: str, requests: int, nodes: int, past: int) -> Row:
    """Compare, then time."""
    setting = Setting.random(bench.SHAPES[name], requests, nodes, past)
    run = planned(setting, bench.SHAPES[name])
    theirs = run(setting.query, setting.pools[0]).float()
    ours = attend(setting.query, *setting.pools[0], setting.pages, setting.forest).float()
    difference = float((theirs - ours).abs().max() / ours.abs().max())
    assert difference <= _TOLERANCE, f"FlashInfer's outputs and ours differ by {difference:.1e}"
    return Row(
        shape=name,
        requests=requests,
        nodes=nodes,
        past=past,
        difference=difference,
        ours_us=_quick(setting.calls()),
        flashinfer_us=_quick([partial(run, setting.query, pool) for pool in setting.pools]),
    )


def _quick(calls: Sequence[Call]) -> float:
    return microseconds(calls, 20.0, QUICK)


def main() -> None:
    """Measure and print; ``--out`` keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", choices=list(bench.SHAPES), default=list(bench.SHAPES))
    parser.add_argument("--requests", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--nodes", nargs="*", type=int, default=[16, 64])
    parser.add_argument("--past", nargs="*", type=int, default=[1024, 8192])
    parser.add_argument("--compile-only", action="store_true", help="for the first shape, with the smallest sizes")
    parser.add_argument("--out", type=Path, default=Path("flashinfer-tree.jsonl"))
    given = parser.parse_args()
    if given.compile_only:
        begun = time.monotonic()
        measured(given.shapes[0], min(given.requests), min(given.nodes), min(given.past))
        print(f"compiled in {time.monotonic() - begun:.0f} s", flush=True)
        return
    announced_bandwidth()
    sizes = product(given.shapes, given.requests, given.nodes, given.past)
    emit((asdict(measured(*size)) for size in sizes), given.out)


if __name__ == "__main__":
    main()
