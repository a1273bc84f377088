"""Tree attention in Triton's interpreter (tests/conftest.py) beside dense rows with a mask; poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

import pytest
import torch
from torch import Tensor

from lossguard.errors import UsageError
from lossguard_kernels.forests.forest import Forest, forest_of
from lossguard_kernels.tree_attention import naive
from lossguard_kernels.tree_attention.operation import attend, compact, write
from lossguard_kernels.tree_attention.pages import PageTable
from lossguard_kernels.tree_attention.tiles import LARGE_SHARED_BYTES, Tiles, tiles_for
from tests.kernels.wy_verify.delta_rows import KINDS, parents_of

SMALL = Tiles(rows=16, columns=16, stages=1, warps=4)


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sizes:
    heads: int = 4
    key_heads: int = 2
    dim: int = 64
    page: int = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """Pools whose unused places hold NaN, and queries in wide rows."""

    query: Tensor
    keys: Tensor
    values: Tensor
    pages: PageTable
    forest: Forest


def case(
    parents: Sequence[Sequence[int]], past: Sequence[int], sizes: Sizes, dtype: torch.dtype = torch.float32
) -> Case:
    forest, num = forest_of(parents), sum(map(len, parents))
    num_pages = max(length + len(tree) for length, tree in zip(past, parents, strict=True)) // sizes.page + 1
    table = torch.randperm(num_pages * len(past) + 1)[: num_pages * len(past)].view(len(past), num_pages)
    pages = PageTable(table=table, past_lengths=torch.tensor(past))
    keys, values = (
        torch.full((num_pages * len(past) + 1, sizes.key_heads, sizes.page, sizes.dim), float("nan"), dtype=dtype)
        for _ in range(2)
    )
    for pool in (keys, values):
        for request, length in enumerate(past):
            for position in range(length):
                row = torch.randn(sizes.key_heads, sizes.dim).to(dtype)
                pool[table[request, position // sizes.page], :, position % sizes.page] = row
    key, value = (torch.randn(num, sizes.key_heads, sizes.dim + 3).to(dtype)[..., : sizes.dim] for _ in range(2))
    write(key.contiguous(), value.contiguous(), keys, values, pages, forest)
    wide = torch.randn(num, sizes.heads * sizes.dim + 5).to(dtype)[:, 5:].unflatten(1, (sizes.heads, sizes.dim))
    return Case(query=wide, keys=keys, values=values, pages=pages, forest=forest)


def error_of(one: Case, parents: Sequence[Sequence[int]], **options: Tiles | int) -> float:
    found = attend(one.query, one.keys, one.values, one.pages, one.forest, **options)  # type: ignore[arg-type]
    expected = naive.attend(one.query, one.keys, one.values, one.pages, parents)
    return float((found.double() - expected).abs().max())


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 17, 64])
def test_trees(kind: str, size: int) -> None:
    parents = [parents_of(kind, size, 3)]
    assert error_of(case(parents, [37], Sizes(heads=2, key_heads=1)), parents, num_splits=1) <= 1e-5


@pytest.mark.parametrize("num_splits", [1, 3])
def test_ragged_requests_in_parts(num_splits: int) -> None:
    parents = [parents_of("random", 3), parents_of("roots", 9), [], parents_of("chain", 2)]
    one = case(parents, [0, 50, 7, 16], Sizes())
    assert error_of(one, parents, num_splits=num_splits, tiles=SMALL) <= 1e-5


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(heads=6, key_heads=1, dim=96),
        Sizes(heads=2, key_heads=2, dim=128, page=32),
        Sizes(heads=6, key_heads=1, dim=256),
    ],
    ids=str,
)
def test_awkward_shapes(sizes: Sizes) -> None:
    parents = [parents_of("random", 12), parents_of("deep", 3)]
    one = case(parents, [21, 4], sizes)
    assert error_of(one, parents, num_splits=1) <= 1e-5
    assert error_of(one, parents, num_splits=2) <= 1e-5


@pytest.mark.parametrize(
    "sizes", [Sizes(heads=6, key_heads=1, dim=256, page=32), Sizes(heads=16, key_heads=2, dim=96, page=24)], ids=str
)
@pytest.mark.parametrize("num_splits", [1, 2])
def test_tiles_of_large_devices(sizes: Sizes, num_splits: int) -> None:
    """Pages smaller and larger than a tile, and more rows than one."""
    parents = [parents_of("random", 24), [], parents_of("deep", 3)]
    one = case(parents, [130, 7, 0], sizes, torch.bfloat16)
    rows = 24 * sizes.heads // sizes.key_heads
    tiles = tiles_for(1 << (sizes.dim - 1).bit_length(), rows, 2, LARGE_SHARED_BYTES)
    largest = float(naive.attend(one.query, one.keys, one.values, one.pages, parents).abs().max())
    assert tiles.rows == (128 if sizes.dim == 256 else 64)
    assert tiles.stages >= 3
    assert error_of(one, parents, num_splits=num_splits, tiles=tiles) <= 2**-7 * largest


def test_bfloat16() -> None:
    """To its rounding; the interpreter cuts where a device rounds."""
    parents = [parents_of("binary", 16)]
    one = case(parents, [40], Sizes(heads=6, key_heads=1), torch.bfloat16)
    largest = float(naive.attend(one.query, one.keys, one.values, one.pages, parents).abs().max())
    for num_splits in (1, 2):
        assert error_of(one, parents, num_splits=num_splits) <= 2**-7 * largest


def test_large_scores_do_not_overflow() -> None:
    parents = [parents_of("random", 6)]
    one = case(parents, [20], Sizes())
    assert error_of(replace(one, query=one.query * 1e4), parents, num_splits=2) <= 1e-3


def test_a_wrong_mask_is_seen() -> None:
    """The test can fail: siblings that see each other give other outputs."""
    one = case([parents_of("star", 6)], [20], Sizes())
    assert error_of(one, [parents_of("chain", 6)], num_splits=1) > 1e-2


@pytest.mark.parametrize("kind", ["chain", "deep", "random"])
def test_a_path_moves_together(kind: str) -> None:
    """In all layers; the moved rows are those of the path, and what lay before stays."""
    parents = [parents_of(kind, 20, 7), [-1, 0], parents_of("random", 9)]
    pages = PageTable(table=torch.randperm(9).view(3, 3), past_lengths=torch.tensor([13, 3, 30]))
    pools = torch.randn(2, 2, 9, 2, 16, 64)  # keys and values, layers, pages, ...
    last, before = torch.tensor([19, -1, 8]), pools.clone()
    compact(pools[0], pools[1], pages, forest_of(parents), last)
    for request, (tree, node) in enumerate(zip(parents, last.tolist(), strict=True)):
        past = int(pages.past_lengths[request])
        path = [*range(past), *(past + step for step in path_of(tree, node))]
        for pool, old in zip(pools.flatten(0, 1), before.flatten(0, 1), strict=True):
            was = naive.positions_of(old, pages.table[request], past + len(tree))
            now = naive.positions_of(pool, pages.table[request], past + len(tree))
            assert torch.equal(now[:, : len(path)], was[:, path])


def path_of(tree: Sequence[int], node: int) -> list[int]:
    return [] if node < 0 else [*path_of(tree, tree[node]), node]


def test_refusals() -> None:
    parents = [[-1, 0]]
    one = case(parents, [5], Sizes())
    query, keys, values, pages, forest = one.query, one.keys, one.values, one.pages, one.forest
    short = replace(pages, past_lengths=torch.zeros(2, dtype=torch.int64))
    for wrong in (
        (query[:, :3], keys, values, pages, forest),
        (query.bfloat16(), keys, values, pages, forest),
        (query[..., :40], keys[..., :40].contiguous(), values[..., :40].contiguous(), pages, forest),
        (query.transpose(1, 2).contiguous().transpose(1, 2), keys, values, pages, forest),
        (query, keys[:-1], values, pages, forest),
        (query, keys, values, short, forest),
        (query, keys, values, replace(pages, table=pages.table.int()), forest),
        (query[:1], keys, values, pages, forest),
    ):
        with pytest.raises(UsageError) as caught:
            attend(*wrong)
        assert caught.value.code == "LG1911"
    with pytest.raises(UsageError) as caught:
        attend(query, keys, values, pages, replace(forest, most_nodes=65))
    assert caught.value.code == "LG1901"
    with pytest.raises(UsageError) as caught:
        compact(keys, values, pages, forest, torch.zeros(1, dtype=torch.int64))
    assert caught.value.code == "LG1911"
    for key, value in ((keys[:2, :, 0], values[:2, :1, 0]), (query, query)):
        with pytest.raises(UsageError) as caught:
            write(key, value, keys, values, pages, forest)
        assert caught.value.code == "LG1911"
