"""Speed of tree attention beside SDPA with a mask: ``python -m lossguard_kernels.tree_attention.bench``, on CUDA.

The layers are those of Qwen3.5-27B (24 queries and 4 keys of 256) and of Qwen3-8B (32 and 8 of 128). SDPA gets keys and
values that lie together already, repeated for no head (``enable_gqa``), and a dense mask: what it would take to gather
pages is left out in its favour. The byte floor is reading keys and values once, at the bandwidth measured first.
"""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lossguard_kernels.forests.forest import Forest, forest_of
from lossguard_kernels.tree_attention import naive
from lossguard_kernels.tree_attention.operation import attend
from lossguard_kernels.tree_attention.pages import PageTable
from lossguard_kernels.tree_attention.tiles import Tiles
from lossguard_kernels.w12_gemm.measuring import QUICK, Call, microseconds, read_bandwidth

_PAGE, _TOLERANCE = 32, 1e-2
_LEAST_BYTES = 200 << 20  # of pools that take turns, past any cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Of an attention layer."""

    heads: int
    key_heads: int
    dim: int


SHAPES = {"27B": Heads(heads=24, key_heads=4, dim=256), "8B": Heads(heads=32, key_heads=8, dim=128)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Operands: one query for all, and pools that take turns."""

    parents: list[list[int]]
    forest: Forest
    query: Tensor
    pages: PageTable
    pools: list[tuple[Tensor, Tensor]]

    @classmethod
    def random(cls, shape: Heads, requests: int, nodes: int, past: int) -> Setting:
        """Binary trees behind ``past`` positions, pages in random order."""
        parents = [[-1, *((node - 1) // 2 for node in range(1, nodes))] for _ in range(requests)]
        num_pages = -(-(past + nodes) // _PAGE)
        table = torch.randperm(requests * num_pages, device="cuda").view(requests, num_pages)
        size = (requests * num_pages, shape.key_heads, _PAGE, shape.dim)
        num_bytes = 4 * requests * num_pages * shape.key_heads * _PAGE * shape.dim
        pools = [
            (torch.randn(size, device="cuda").bfloat16(), torch.randn(size, device="cuda").bfloat16())
            for _ in range(max(1, -(-_LEAST_BYTES // num_bytes)))
        ]
        return cls(
            parents=parents,
            forest=forest_of(parents, "cuda"),
            query=torch.randn(requests * nodes, shape.heads, shape.dim, device="cuda").bfloat16(),
            pages=PageTable(table=table, past_lengths=torch.full((requests,), past, device="cuda")),
            pools=pools,
        )

    def calls(self, tiles: Tiles | None = None, num_splits: int | None = None) -> list[Call]:
        """Ours."""
        return [
            lambda k=k, v=v: attend(self.query, k, v, self.pages, self.forest, tiles=tiles, num_splits=num_splits)  # type: ignore[misc]
            for k, v in self.pools
        ]

    def dense_calls(self) -> list[Call]:
        """SDPA over keys and values without pages."""
        requests, nodes = len(self.parents), len(self.parents[0])
        past = int(self.pages.past_lengths[0])
        mask = naive.visible(self.parents[0], past).cuda().expand(requests, 1, nodes, past + nodes)
        query = self.query.unflatten(0, (requests, nodes)).transpose(1, 2).contiguous()
        return [
            lambda k=k, v=v: scaled_dot_product_attention(query, k, v, attn_mask=mask, enable_gqa=True)  # type: ignore[misc]
            for k, v in (tuple(self._dense(pool, past + nodes) for pool in pair) for pair in self.pools)
        ]

    def _dense(self, pool: Tensor, length: int) -> Tensor:
        return torch.stack([naive.positions_of(pool, row, length) for row in self.pages.table]).contiguous()


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
    keys, values = setting.pools[0]
    found = attend(setting.query, keys, values, setting.pages, setting.forest)
    cpu = PageTable(table=setting.pages.table.cpu(), past_lengths=setting.pages.past_lengths.cpu())
    nodes, requests = len(setting.parents[0]), len(setting.parents)
    first = PageTable(table=cpu.table[:1], past_lengths=cpu.past_lengths[:1])
    expected = naive.attend(setting.query[:nodes].cpu(), keys.cpu(), values.cpu(), first, setting.parents[:1])
    error = float((found[:nodes].cpu() - expected).abs().max() / expected.abs().max())
    assert error <= _TOLERANCE, f"outputs are wrong by {error:.1e}"
    past = int(cpu.past_lengths[0])
    num_bytes = 4 * requests * (past + nodes) * keys.shape[1] * keys.shape[3]
    floor = num_bytes / bandwidth * 1e6
    return Row(
        shape=name,
        requests=requests,
        nodes=nodes,
        past=past,
        ours_us=microseconds(setting.calls(), max(10.0, 2 * floor)),
        sdpa_us=microseconds(setting.dense_calls(), max(20.0, 4 * floor), QUICK),
        floor_us=floor,
        error=error,
    )


def sweep(setting: Setting) -> None:
    """Times of other tiles and splits."""
    for rows in (16, 32, 64, 128):
        for columns in (32, 64):
            for stages in (2, 3):
                for splits in (1, 4, 16):
                    tiles = Tiles(rows=rows, columns=columns, stages=stages, warps=4 if rows < 128 else 8)
                    took = microseconds(setting.calls(tiles, splits), 50.0, QUICK)
                    print(f"  {took:8.1f} us  {tiles} splits {splits}", flush=True)


def main() -> None:
    """Measure and print; ``--out`` keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--requests", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--nodes", nargs="*", type=int, default=[16, 64])
    parser.add_argument("--past", nargs="*", type=int, default=[1024, 8192])
    parser.add_argument("--sweep", action="store_true", help="time other tiles too (some may not fit the device)")
    parser.add_argument("--out", type=Path, default=Path("tree-attention.jsonl"))
    given = parser.parse_args()
    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}: reads {bandwidth / 1e12:.2f} TB/s\n{HEADER}", flush=True)
    for name in given.shapes:
        for requests in given.requests:
            for nodes in given.nodes:
                for past in given.past:
                    setting = Setting.random(SHAPES[name], requests, nodes, past)
                    row = measured(name, setting, bandwidth)
                    print(row.line(), flush=True)
                    with given.out.open("a", encoding="utf-8") as file:
                        file.write(json.dumps(asdict(row)) + "\n")
                    if given.sweep:
                        sweep(setting)


if __name__ == "__main__":
    main()
