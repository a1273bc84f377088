"""On an accelerator: the compiled kernel's trees are the heap's, and replays of a graph write all of them."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from lossguard_kernels.best_first import naive
from lossguard_kernels.best_first.operation import empty_growth, grow_into
from tests.kernels.best_first.test_growth import CASES, candidates_of, poison, scores

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize("grid", [0.0, 1.5, 100.0], ids=["all different", "ties", "all equal"])
@pytest.mark.parametrize(("batch", "depths", "candidates", "drafts"), [*CASES, (32, 7, 16, 15), (64, 15, 16, 63)])
def test_the_trees_are_those_of_a_heap(batch: int, depths: int, candidates: int, drafts: int, grid: float) -> None:
    first, steps = (part.cuda() for part in scores(batch, depths, candidates, seed=drafts, grid=grid))
    ids, anchors = candidates_of(batch, depths, candidates).cuda(), torch.arange(batch).cuda()
    growth = empty_growth(anchors, drafts)
    grow_into(growth, first, steps, ids, anchors)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        grow_into(growth, first, steps, ids, anchors)
    poison(growth)
    graph.replay()
    found = [part.tolist() for part in (growth.parents, growth.depths, growth.tokens)]
    ancestors, asked = growth.ancestors.view(torch.int8).cpu().numpy(), candidates_of(batch, depths, candidates)
    for row in range(batch):
        nodes = naive.grow(first[row].cpu().numpy(), steps[row].cpu().numpy(), drafts)
        tokens = [int(asked[row, node.depth - 1, node.rank]) for node in nodes]
        assert found[0][row] == [-1, *(node.parent for node in nodes)]
        assert found[1][row] == [0, *(node.depth for node in nodes)]
        assert found[2][row] == [row, *tokens]
        assert np.array_equal(ancestors[row], naive.ancestors_of(nodes))
