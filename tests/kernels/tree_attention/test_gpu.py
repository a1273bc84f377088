"""The compiled kernels on a GPU; pools hold NaN wherever nothing was written."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lossguard_kernels.forests.forest import forest_of
from lossguard_kernels.tree_attention import naive
from lossguard_kernels.tree_attention.operation import attend, compact, write
from lossguard_kernels.tree_attention.pages import PageTable
from tests.kernels.tree_attention.test_operation import Sizes, path_of
from tests.kernels.wy_verify.delta_rows import KINDS, parents_of

pytestmark = pytest.mark.gpu

SHAPES = [
    Sizes(heads=4, key_heads=4, dim=64),
    Sizes(heads=6, key_heads=2, dim=96, page=32),
    Sizes(heads=32, key_heads=8, dim=128, page=16),
    Sizes(heads=24, key_heads=4, dim=256, page=32),
]
PAST = [0, 1000, 77]


def pools_of(parents: list[list[int]], sizes: Sizes, dtype: torch.dtype) -> tuple[torch.Tensor, PageTable]:
    """[2, 2 layers, pages, key heads, page, dim] with all positions of the requests filled."""
    num_pages = (max(PAST) + 64) // sizes.page + 1
    table = torch.randperm(num_pages * 3 + 1)[:-1].view(3, num_pages)
    pools = torch.full((2, 2, num_pages * 3 + 1, sizes.key_heads, sizes.page, sizes.dim), float("nan"), dtype=dtype)
    for request, (past, tree) in enumerate(zip(PAST, parents, strict=True)):
        positions = torch.arange(past + len(tree))
        rows = torch.randn(2, 2, len(positions), sizes.key_heads, sizes.dim).to(dtype)
        pools[:, :, table[request, positions // sizes.page], :, positions % sizes.page] = rows.permute(2, 0, 1, 3, 4)
    return pools.cuda(), PageTable(table=table.cuda(), past_lengths=torch.tensor(PAST, device="cuda"))


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("size", [1, 16, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
def test_attention_and_compaction(sizes: Sizes, size: int, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    for kind in KINDS:
        parents = [parents_of(kind, size, 2), parents_of("random", min(5, size)), [-1]]
        pools, pages = pools_of(parents, sizes, dtype)
        forest = forest_of(parents, "cuda")
        query = torch.randn(sum(map(len, parents)), sizes.heads, sizes.dim).to(dtype)
        cpu = replace(pages, table=pages.table.cpu(), past_lengths=pages.past_lengths.cpu())
        expected = naive.attend(query, pools[0, 0].cpu(), pools[1, 0].cpu(), cpu, parents)
        bound = float(expected.abs().max()) * (2**-8 if dtype == torch.bfloat16 else 1e-5)
        for splits in (None, 1, 2, 5):
            found = attend(query.cuda(), pools[0, 0], pools[1, 0], pages, forest, num_splits=splits)
            assert float((found.cpu().double() - expected).abs().max()) <= bound
        before = pools.cpu()
        compact(pools[0], pools[1], pages, forest, forest.counts - 1)
        for request, tree in enumerate(parents):
            past = PAST[request]
            path = [*range(past), *(past + node for node in path_of(tree, len(tree) - 1))]
            for pool, old in zip(pools.cpu().flatten(0, 1), before.flatten(0, 1), strict=True):
                was = naive.positions_of(old, cpu.table[request], past + len(tree))
                now = naive.positions_of(pool, cpu.table[request], past + len(tree))
                assert torch.equal(now[:, : len(path)], was[:, path])


def test_writes() -> None:
    torch.manual_seed(0)
    sizes, parents = SHAPES[1], [parents_of("random", 9), [-1], [-1, 0]]
    pools, pages = pools_of(parents, sizes, torch.bfloat16)
    key, value = torch.randn(2, 12, sizes.key_heads, sizes.dim, device="cuda").bfloat16()
    write(key, value, pools[0, 0], pools[1, 0], pages, forest_of(parents, "cuda"))
    begin = 0
    for request, tree in enumerate(parents):
        for pool, rows in ((pools[0, 0], key), (pools[1, 0], value)):
            there = naive.positions_of(pool, pages.table[request], PAST[request] + len(tree))
            assert torch.equal(there[:, PAST[request] :].transpose(0, 1), rows[begin : begin + len(tree)])
        begin += len(tree)
