"""The state after many rounds of verify and commit, beside a recurrence in float64."""

from __future__ import annotations

import torch
from torch import Tensor

from lossguard_kernels.forests.forest import ancestor_words, forest_of
from lossguard_kernels.wy_verify import naive, plain
from lossguard_kernels.wy_verify.operation import commit, verify
from lossguard_kernels.wy_verify.rows import empty_stash
from tests.kernels.wy_verify.delta_rows import Sizes, as_dtype, delta_rows, parents_of
from tests.kernels.wy_verify.test_operation import shape_of

BOUND = 5e-7
SIZES = Sizes(heads=1, key_dim=128, value_dim=32)
NODES = 12


def three_parts(left: Tensor, right: Tensor) -> Tensor:
    """As the kernel multiplies a float32 operand on bfloat16 tensor cores: in three parts of eight bits."""
    upper = cut(right)
    middle = cut(right - upper)
    return left @ (right - upper - middle) + left @ middle + left @ upper


def cut(x: Tensor) -> Tensor:
    return (x.view(torch.int32) & -65536).view(torch.float32)


def drift(product: plain.Product, rounds: int) -> float:
    make = torch.Generator().manual_seed(5)
    truth = torch.randn(1, SIZES.key_dim, SIZES.value_dim, generator=make, dtype=torch.float64) * 0.1
    state, worst = truth.float(), 0.0
    for step in range(rounds):
        parents = parents_of("deep", NODES, step)
        rows = as_dtype(delta_rows(NODES, SIZES, seed=step, decay=0.02), torch.bfloat16)
        node = int(torch.randint(0, NODES, (1,), generator=make))
        path = naive.path_to(parents, node)
        _, stash = plain.verify_tree(rows, mask_of(parents), state, product)
        state = plain.path_state(stash, torch.tensor(path), state, product)
        truth = naive.after_path(rows, path, truth)
        worst = max(worst, float((state - truth).norm() / truth.norm()))
    return worst


def mask_of(parents: list[int]) -> Tensor:
    words = torch.tensor(ancestor_words(parents))
    return ((words[:, None] >> torch.arange(len(parents))) & 1) == 1


def test_300_rounds_in_float32_and_in_parts() -> None:
    assert drift(torch.matmul, 300) <= BOUND
    assert drift(three_parts, 300) <= BOUND


def test_two_parts_drift() -> None:
    """The test can fail: without the last eight bits the state is wrong by more than it may."""
    assert drift(lambda left, right: left @ cut(right) + left @ cut(right - cut(right)), 30) > BOUND


def test_rounds_of_the_kernels() -> None:
    truth = torch.randn(1, SIZES.key_dim, SIZES.value_dim, dtype=torch.float64) * 0.1
    states, slots = truth.float()[None, None], torch.zeros(1, dtype=torch.int64)
    for step in range(25):
        parents = parents_of("deep", NODES, step)
        rows, forest = delta_rows(NODES, SIZES, seed=step, decay=0.02), forest_of([parents])
        stash, node = empty_stash(shape_of(rows, 1), "cpu"), (7 * step) % NODES
        verify(rows, forest, states[0], slots, stash=stash.layer(0))
        commit(stash, forest, torch.tensor([node]), states, slots)
        truth = naive.after_path(rows, naive.path_to(parents, node), truth)
    assert float((states[0, 0] - truth).norm() / truth.norm()) <= BOUND
