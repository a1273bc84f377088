"""The convolution over trees, and the commit of a path, in Triton's interpreter."""

from __future__ import annotations

import pytest
import torch

from lossguard.errors import UsageError
from lossguard_kernels.forests.forest import forest_of
from lossguard_kernels.wy_verify import naive
from lossguard_kernels.wy_verify.convolution import commit_convolution, convolve, sources_of
from tests.kernels.wy_verify.delta_rows import parents_of


@pytest.mark.parametrize(("num", "width"), [(24, 4), (300, 4), (24, 2), (10, 3)])
def test_trees_and_commits(num: int, width: int) -> None:
    torch.manual_seed(0)
    parents, layers = [parents_of("random", 6), [], parents_of("chain", 9), [-1]], 2
    forest, sources = forest_of(parents), sources_of(parents, width)
    channels = torch.randn(layers, 16, num + 7)[..., 3 : num + 3]
    weight, past = torch.randn(num, width), torch.randn(layers, 5, num, width - 1)
    slots, last = torch.tensor([4, 3, 1, 0]), torch.tensor([5, -1, 7, -1])
    before = past.clone()
    for layer in range(layers):
        output = convolve(channels[layer], weight, past[layer], sources, forest, slots)
        for tree, first, slot in zip(parents, forest.firsts.tolist(), slots, strict=True):
            if tree:
                own = slice(first, first + len(tree))
                expected, _ = naive.convolve(channels[layer, own], weight, before[layer, slot], tree)
                torch.testing.assert_close(output[own].double(), expected, rtol=1e-5, atol=1e-5)
    assert torch.equal(past, before)
    commit_convolution(channels, past, sources, forest, last, slots)
    for layer in range(layers):
        for tree, first, slot, node in zip(parents, forest.firsts.tolist(), slots, last.tolist(), strict=True):
            if node >= 0:
                _, after = naive.convolve(channels[layer, first : first + len(tree)], weight, before[layer, slot], tree)
                assert torch.equal(past[layer, slot].double(), after[node])
    assert torch.equal(past[:, [0, 2, 3]], before[:, [0, 2, 3]])


def test_refusals() -> None:
    parents, slots = [[-1, 0]], torch.zeros(1, dtype=torch.int64)
    forest, sources = forest_of(parents), sources_of(parents, 4)
    channels, weight, past = torch.randn(2, 8), torch.randn(8, 4), torch.randn(1, 8, 3)
    for arguments in ((channels[:, :6], weight, past, sources), (channels, weight, past[..., :2], sources)):
        with pytest.raises(UsageError) as caught:
            convolve(*arguments, forest, slots)
        assert caught.value.code == "LG1911"
    with pytest.raises(UsageError) as caught:
        convolve(channels, weight, past, sources[:, :3], forest, slots)
    assert caught.value.code == "LG1911"
    with pytest.raises(UsageError) as caught:
        commit_convolution(channels[None], past, sources, forest, slots, slots)
    assert caught.value.code == "LG1911"
