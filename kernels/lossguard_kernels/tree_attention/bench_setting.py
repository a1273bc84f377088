"""Operands of the bench: trees behind committed positions, in pools that take turns."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import scaled_dot_product_attention

from lossguard_kernels.forests.forest import Forest, forest_of
from lossguard_kernels.tree_attention import naive
from lossguard_kernels.tree_attention.operation import attend
from lossguard_kernels.tree_attention.pages import PageTable
from lossguard_kernels.tree_attention.tiles import Tiles
from lossguard_kernels.w12_gemm.measuring import Call

_PAGE = 32
_LEAST_BYTES = 200 << 20  # of pools that take turns, past any cache


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
    """Of an attention layer."""

    heads: int
    key_heads: int
    dim: int


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

    @property
    def past(self) -> int:
        """Committed positions of each request."""
        return int(self.pages.past_lengths[0])

    @property
    def num_rows(self) -> int:
        """Nodes times the queries of a key head."""
        return len(self.parents[0]) * self.query.shape[1] // self.pools[0][0].shape[1]

    @property
    def num_bytes(self) -> int:
        """Of keys and values, read once."""
        _, key_heads, _, dim = self.pools[0][0].shape
        return 4 * len(self.parents) * (self.past + len(self.parents[0])) * key_heads * dim

    def calls(self, tiles: Tiles | None = None, num_splits: int | None = None) -> list[Call]:
        """Ours."""
        return [
            lambda k=k, v=v: attend(self.query, k, v, self.pages, self.forest, tiles=tiles, num_splits=num_splits)  # type: ignore[misc]
            for k, v in self.pools
        ]

    def dense_calls(self) -> list[Call]:
        """SDPA over keys and values without pages."""
        requests, nodes = len(self.parents), len(self.parents[0])
        past = self.past
        mask = naive.visible(self.parents[0], past).cuda().expand(requests, 1, nodes, past + nodes)
        query = self.query.unflatten(0, (requests, nodes)).transpose(1, 2).contiguous()
        return [
            lambda k=k, v=v: scaled_dot_product_attention(query, k, v, attn_mask=mask, enable_gqa=True)  # type: ignore[misc]
            for k, v in (tuple(self._dense(pool, past + nodes) for pool in pair) for pair in self.pools)
        ]

    def _dense(self, pool: Tensor, length: int) -> Tensor:
        return torch.stack([naive.positions_of(pool, row, length) for row in self.pages.table]).contiguous()
