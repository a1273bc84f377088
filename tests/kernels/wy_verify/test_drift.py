"""The state after many rounds of verify and commit, beside a recurrence in float64."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from lossguard_kernels.forests.forest import ancestor_words, forest_of
from lossguard_kernels.wy_verify import naive, plain
from lossguard_kernels.wy_verify.operation import commit, verify
from lossguard_kernels.wy_verify.rows import Stash, empty_stash
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


def cut(x: Tensor, bits: int = -65536) -> Tensor:
    """Without its last bits: what bfloat16 holds, or (-8192) tf32."""
    return (x.contiguous().view(torch.int32) & bits).view(torch.float32)


def chopped(x: Tensor) -> Tensor:
    """float64 to float32 towards zero, as tensor cores round their sums."""
    near = x.float()
    return torch.where(near.double().abs() > x.abs(), torch.nextafter(near, torch.zeros_like(near)), near)


def on_tensor_cores(left: Tensor, right: Tensor, begin: Tensor | None = None) -> Tensor:
    """``begin + left right`` in three parts, 16 terms at a time, each sum chopped."""
    upper = cut(right)
    middle = cut(right - upper)
    total = torch.zeros(()) if begin is None else begin
    for part in (right - upper - middle, middle, upper):
        for at in range(0, left.shape[-1], 16):
            own = slice(at, at + 16)
            total = chopped(total.double() + left[..., own].double() @ part[..., own, :].double())
    return total


def into_the_accumulator(stash: Stash, path: Tensor, state: Tensor) -> Tensor:
    """A commit whose product begins with the old state; as many key heads as value heads."""
    total = stash.totals[path].T  # [heads, length]
    weight = stash.units[path].T * (total[:, -1:] - total).exp()
    update = weight[..., None] * stash.updates[path].transpose(0, 1)
    return on_tensor_cores(stash.keys[path].float().permute(1, 2, 0), update, total[:, -1, None, None].exp() * state)


Commit = Callable[[Stash, Tensor, Tensor], Tensor]


def drift(product: plain.Product, rounds: int, commit_path: Commit | None = None) -> float:
    make = torch.Generator().manual_seed(5)
    truth = torch.randn(1, SIZES.key_dim, SIZES.value_dim, generator=make, dtype=torch.float64) * 0.1
    state, worst = truth.float(), 0.0
    for step in range(rounds):
        parents = parents_of("deep", NODES, step)
        rows = as_dtype(delta_rows(NODES, SIZES, seed=step, decay=0.02), torch.bfloat16)
        node = int(torch.randint(0, NODES, (1,), generator=make))
        path = naive.path_to(parents, node)
        _, stash = plain.verify_tree(rows, mask_of(parents), state, product)
        if commit_path is None:
            state = plain.path_state(stash, torch.tensor(path), state, product)
        else:
            state = commit_path(stash, torch.tensor(path), state)
        truth = naive.after_path(rows, path, truth)
        worst = max(worst, float((state - truth).norm() / truth.norm()))
    return worst


def mask_of(parents: list[int]) -> Tensor:
    words = torch.tensor(ancestor_words(parents))
    return ((words[:, None] >> torch.arange(len(parents))) & 1) == 1


def test_300_rounds_in_float32_and_in_parts() -> None:
    assert drift(torch.matmul, 300) <= BOUND
    assert drift(three_parts, 300) <= BOUND


def test_300_rounds_in_two_parts_of_tf32() -> None:
    """As states meet up to 32 nodes: 22 bits of 24, of which tensor cores cut the last two."""

    def two_parts(left: Tensor, right: Tensor) -> Tensor:
        upper = cut(right, -8192)
        return left @ cut(right - upper, -8192) + left @ upper

    assert drift(two_parts, 300) <= BOUND


def test_two_parts_drift() -> None:
    """The test can fail: without the last eight bits the state is wrong by more than it may."""
    assert drift(lambda left, right: left @ cut(right) + left @ cut(right - cut(right)), 30) > BOUND


def test_sums_of_tensor_cores_are_added_outside_of_them() -> None:
    """What the commit kernel does, and what it must not do: the old state would be chopped in every round."""
    assert drift(on_tensor_cores, 300) <= BOUND
    assert drift(torch.matmul, 60, into_the_accumulator) > BOUND


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
