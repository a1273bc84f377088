"""The kernel's trees are a heap's, node for node and tie for tie, in Triton's interpreter."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lossguard.errors import UsageError
from lossguard_kernels.best_first import naive
from lossguard_kernels.best_first.operation import Growth, empty_growth, grow, grow_into

POISON = -77
CASES = [  # batch, depths, candidates, drafts
    (3, 7, 16, 15), (2, 7, 16, 63), (1, 15, 16, 31), (2, 4, 5, 16), (1, 1, 16, 16), (2, 7, 1, 7), (1, 3, 2, 14),
    (2, 2, 16, 1), (1, 6, 3, 63),
]  # fmt: skip


def scores(batch: int, depths: int, candidates: int, *, seed: int, grid: float = 0.0) -> tuple[torch.Tensor, ...]:
    """Log-probabilities of first candidates and of steps, on a grid for ties, with strides of their own."""
    draw = torch.Generator().manual_seed(seed)
    wide = torch.randn(batch, depths, candidates, candidates + 3, generator=draw).mul(2).log_softmax(-1)
    steps = wide[..., :candidates]
    if grid:
        steps = (steps / grid).round() * grid
    return steps[:, 0, 0], steps[:, 1:]


def candidates_of(batch: int, depths: int, candidates: int) -> torch.Tensor:
    """Different ids everywhere, as a cut of something longer."""
    return (torch.arange(batch * (depths + 2) * candidates) + 1000).view(batch, depths + 2, candidates)[:, :depths]


def poison(growth: Growth) -> None:
    """So that what is not written is seen."""
    for part in (growth.tokens, growth.parents, growth.depths):
        part.fill_(POISON)
    growth.ancestors.view(torch.int8).fill_(POISON)


@pytest.mark.parametrize("grid", [0.0, 1.5, 100.0], ids=["all different", "ties", "all equal"])
@pytest.mark.parametrize(("batch", "depths", "candidates", "drafts"), CASES)
def test_the_trees_are_those_of_a_heap(batch: int, depths: int, candidates: int, drafts: int, grid: float) -> None:
    first, steps = scores(batch, depths, candidates, seed=drafts, grid=grid)
    ids, anchors = candidates_of(batch, depths, candidates), torch.arange(3 * batch)[::3]
    growth = empty_growth(anchors, drafts)
    poison(growth)
    grow_into(growth, first, steps, ids, anchors)
    for row in range(batch):
        nodes = naive.grow(first[row].numpy(), steps[row].numpy(), drafts)
        assert growth.parents[row].tolist() == [-1, *(node.parent for node in nodes)]
        assert growth.depths[row].tolist() == [0, *(node.depth for node in nodes)]
        tokens = [int(ids[row, node.depth - 1, node.rank]) for node in nodes]
        assert growth.tokens[row].tolist() == [int(anchors[row]), *tokens]
        assert np.array_equal(growth.ancestors[row].view(torch.int8).numpy(), naive.ancestors_of(nodes))


def test_impossible_steps_come_last() -> None:
    first, steps = torch.tensor([[-1.0, -torch.inf]]), torch.full((1, 1, 2, 2), -torch.inf)
    steps[0, 0, 0, 1] = -0.5
    growth = grow(first, steps, candidates_of(1, 2, 2), torch.zeros(1, dtype=torch.int64), 4)
    nodes = naive.grow(first[0].numpy(), steps[0].numpy(), 4)
    assert growth.parents[0].tolist() == [-1, *(node.parent for node in nodes)]
    assert growth.tokens[0].tolist() == [0, 1000, 1001, 1003, 1002]


def test_depths_that_do_not_see_each_other() -> None:
    own = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(4)).log_softmax(-1)
    steps = own[:, 1:, None, :].expand(2, 4, 16, 16)
    growth = grow(own[:, 0], steps, candidates_of(2, 5, 16), torch.zeros(2, dtype=torch.int64), 20)
    for row in range(2):
        nodes = naive.grow(own[row, 0].numpy(), steps[row].numpy(), 20)
        assert growth.parents[row].tolist() == [-1, *(node.parent for node in nodes)]


@pytest.mark.parametrize(
    ("change", "drafts"),
    [("none", 64), ("none", 0), ("candidates", 8), ("dtype", 8), ("anchors", 8), ("steps", 8), ("few", 7)],
)
def test_what_does_not_fit_is_refused(change: str, drafts: int) -> None:
    width, depths = (17 if change == "candidates" else 2 if change == "few" else 16), 2
    first, steps = scores(2, depths, width, seed=1)
    ids, anchors = candidates_of(2, depths, width), torch.zeros(3 if change == "anchors" else 2, dtype=torch.int64)
    if change == "dtype":
        first = first.double()
    if change == "steps":
        steps = steps[:, :, :3]
    with pytest.raises(UsageError) as caught:
        grow(first, steps, ids, anchors, drafts)
    assert caught.value.code == "LG1911"
