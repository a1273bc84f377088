"""Triton kernels in the interpreter (tests/conftest.py) against torch's own operations, alone and in steps."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lossguard_mechanisms.engine.acceleration import Acceleration
from lossguard_mechanisms.engine.commit import commit
from lossguard_mechanisms.engine.convolution_kernel import convolve_step_in_place
from lossguard_mechanisms.engine.delta_kernel import delta_step_in_place
from lossguard_mechanisms.engine.memory import Memory
from lossguard_mechanisms.targets.config import ATTENTION, DELTA, DeltaShape
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.gated_delta import convolve_chunk, delta_step
from lossguard_mechanisms.targets.initial_weights import random_target
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.trees.tree import Path, Tree, chain, tree_of
from tests.mechanisms.drafters.small import TIED_HYBRID
from tests.mechanisms.engine.test_commit import PARENTS, PAST, memory_of, path_to, run_committed, verify

NUM_SLOTS = 6
CONFIG = replace(
    TIED_HYBRID,
    hidden_size=24,
    intermediate_size=32,
    layer_types=(DELTA, ATTENTION, DELTA, ATTENTION),
    head_dim=16,
    rotary_dim=8,
    delta=DeltaShape(num_key_heads=1, num_value_heads=2, key_dim=16, value_dim=32, conv_width=4),
)
DEEP = [-1, 0, 1, 2, 3, 4, 5, 6]
TREES = [
    tree_of(torch.arange(16).view(2, 8) % 53, torch.tensor([PARENTS, DEEP])),
    chain(torch.tensor([5, 9]), torch.tensor([[1, 2, 3], [4, 5, 6]])),
]


def wide_target() -> Target:
    """Sizes that kernels take, and weights so large that every layer counts."""
    target = random_target(CONFIG, seed=0)
    with torch.no_grad():
        for parameter in target.parameters():
            if parameter.dim() == 2:
                parameter.mul_(10.0)
    return target.requires_grad_(requires_grad=False)


@pytest.mark.parametrize("tree", TREES, ids=["trees", "chains"])
@pytest.mark.parametrize("ends", [(3, 2), (0, 3), (-1, -1)], ids=str)
def test_a_tree_by_kernels_is_one_by_torch(tree: Tree, ends: tuple[int, int]) -> None:
    """Logits of all nodes; after the commit of a path the states, and what single tokens read of them."""
    target = wide_target()
    plain, fast = memory_of(target), memory_of(target, Acceleration(has_kernels=True))
    path = path_of(tree, [end % tree.num_nodes for end in ends])
    logits, after = zip(*(steps(target, memory, tree, path) for memory in (plain, fast)), strict=True)
    torch.testing.assert_close(logits[1], logits[0], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(fast.recurrent.recurrent, plain.recurrent.recurrent, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(fast.recurrent.conv, plain.recurrent.conv, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(after[1], after[0], rtol=1e-4, atol=1e-4)


def steps(target: Target, memory: Memory, tree: Tree, path: Path) -> tuple[Tensor, Tensor]:
    """Logits of the nodes, and of single tokens after the commit of ``path``."""
    with torch.inference_mode():
        prompts = [torch.arange(length) for length in PAST]
        run_committed(target, memory, prompts, [0, 0])
        before = memory.recurrent.recurrent.clone(), memory.recurrent.conv.clone()
        logits, stash = verify(target, memory, tree)
        assert (stash.kept is not None) is memory.sizes.acceleration.has_kernels
        assert torch.equal(memory.recurrent.recurrent, before[0]), "a verification changes no state"
        assert torch.equal(memory.recurrent.conv, before[1])
        commit(stash, path, recurrent=memory.recurrent, key_values=memory.key_values)
        past = [begin + size for begin, size in zip(PAST, path.num_nodes.tolist(), strict=True)]
        return logits, run_committed(target, memory, [torch.tensor([7]), torch.tensor([8])], past)


def path_of(tree: Tree, ends: list[int]) -> Path:
    """From the anchor to ``ends``."""
    paths = [path_to(tree, sequence, end) for sequence, end in enumerate(ends)]
    nodes = torch.tensor([path + [0] * (tree.num_nodes - len(path)) for path in paths])
    return Path(nodes=nodes, num_nodes=torch.tensor([len(path) for path in paths]), emitted=nodes)


def test_one_token_through_the_delta_rule_with_views_as_the_layer_gives_them() -> None:
    torch.manual_seed(0)
    batch, key_heads, heads, key_dim, value_dim = 3, 2, 4, 16, 32
    wide = (key_heads * key_dim, key_heads * key_dim, heads * value_dim)
    query, key, value = torch.randn(batch, sum(wide)).split(wide, dim=-1)
    inputs = DeltaInputs(
        query=query.unflatten(-1, (key_heads, key_dim)),
        key=key.unflatten(-1, (key_heads, key_dim)),
        value=value.unflatten(-1, (heads, value_dim)),
        log_decay=-torch.rand(batch, heads),
        beta=torch.rand(batch, heads),
    )
    states, slots = torch.randn(NUM_SLOTS, heads, key_dim, value_dim), torch.tensor([4, 1, 2])
    expected, after = delta_step(inputs, states[slots])
    changed = states.clone()
    torch.testing.assert_close(delta_step_in_place(inputs, changed, slots), expected)
    torch.testing.assert_close(changed[slots], after)
    assert torch.equal(changed[[0, 3, 5]], states[[0, 3, 5]]), "other slots stay"


@pytest.mark.parametrize(("width", "num_channels"), [(4, 300), (3, 257), (2, 64)])
def test_one_token_through_the_convolution(width: int, num_channels: int) -> None:
    torch.manual_seed(0)
    slots = torch.tensor([4, 1, 2])
    weight, past = torch.randn(num_channels, width), torch.randn(NUM_SLOTS, num_channels, width - 1)
    channels = torch.randn(len(slots), num_channels + 7)[:, :num_channels]  # rows lie apart
    expected, after = convolve_chunk(channels[:, None], weight, past[slots], None)
    changed, wanted = past.clone(), past.clone()
    torch.testing.assert_close(convolve_step_in_place(channels, weight, changed, slots), expected[:, 0])
    wanted[slots] = after
    assert torch.equal(changed, wanted), "one column on, and no other slot"
