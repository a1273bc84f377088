"""Run by ``test_kernels``: compare kernels with torch's own operations, and say that they agree.

With ``TRITON_INTERPRET=1`` on the CPU, without it on the CUDA device.
"""

from __future__ import annotations

import os
import sys
from itertools import product

import torch
from torch import Tensor

from lossguard_mechanisms.engine.convolution_kernel import (
    commit_convolution_in_place,
    convolve_step_in_place,
    convolve_tree,
)
from lossguard_mechanisms.engine.delta_kernel import delta_step_in_place
from lossguard_mechanisms.engine.delta_tree_kernel import commit_delta_in_place, verify_delta_in_place
from lossguard_mechanisms.engine.paged_attention import attend_pages, write_rows
from lossguard_mechanisms.engine.paged_step import PagedStep, own_bits
from lossguard_mechanisms.engine.verification import convolution_sources, verify_convolution, verify_delta
from lossguard_mechanisms.targets.gated_delta import convolve_chunk, delta_step
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.trees.tree import Path, Tree, chain, tree_of

NUM_SLOTS = 6
NARROW = torch.float16  # the interpreter multiplies no bfloat16
TREES = ((2, 8, 2, 4, 16, 32), (1, 1, 1, 3, 32, 16), (3, 5, 3, 3, 16, 48), (2, 20, 1, 2, 16, 16), (1, 64, 1, 1, 16, 16))
"""B, N, key heads, value heads, key dim, value dim"""
SHAPES = ((2, 1, 6, 2, 16, 16, 5), (3, 5, 4, 2, 32, 16, 4), (1, 8, 8, 1, 16, 32, 3), (1, 64, 1, 1, 16, 16, 6))
"""B, T, heads, key heads, dim, page size, pages of a sequence"""


def attention() -> None:
    """Chains and random trees over scattered pages, and the writes."""
    for batch, own, heads, key_heads, dim, page, num_pages in SHAPES:
        pools = [torch.randn(batch * num_pages + 1, key_heads, page, dim) for _ in range(2)]
        table = torch.randperm(batch * num_pages).view(batch, num_pages)
        past = torch.randint(0, num_pages * page - own, (batch,))
        query = torch.randn(batch * own, heads, dim)
        for ancestors in (None, _random_ancestors(batch, own)):
            bits = own_bits(ancestors, batch=batch, own=own, device=query.device)
            places = past[:, None] + torch.arange(own)
            blocks = table.gather(1, places // page)[..., None] * key_heads + torch.arange(key_heads)
            writes = (blocks * page + (places % page)[..., None]).flatten()
            step = PagedStep(table=table, past_lengths=past, bits=bits, writes=writes)
            key, value = (torch.randn(batch * own, key_heads, dim) for _ in range(2))
            write_rows(key, value, pools[0], pools[1], step)
            torch.testing.assert_close(pools[0].view(-1, dim)[writes], key.flatten(0, 1))
            torch.testing.assert_close(pools[1].view(-1, dim)[writes], value.flatten(0, 1))
            seen = torch.ones(own, own).tril().bool().expand(batch, own, own) if ancestors is None else ancestors
            expected = _attention(query, pools, table, past, seen)
            rtol, atol = (0.01, 0.005) if query.is_cuda else (1e-5, 1e-5)  # products in tf32 there
            torch.testing.assert_close(attend_pages(query, pools[0], pools[1], step), expected, rtol=rtol, atol=atol)


def delta() -> None:
    """One token from given states, with views as the layer gives them."""
    batch, key_heads, heads, key_dim, value_dim = 3, 2, 4, 16, 32
    channels = torch.randn(batch, 2 * key_heads * key_dim + heads * value_dim)
    wide = (key_heads * key_dim, key_heads * key_dim, heads * value_dim)
    query, key, value = channels.split(wide, dim=-1)
    inputs = DeltaInputs(
        query=query.unflatten(-1, (key_heads, key_dim)),
        key=key.unflatten(-1, (key_heads, key_dim)),
        value=value.unflatten(-1, (heads, value_dim)),
        log_decay=-torch.rand(batch, heads),
        beta=torch.rand(batch, heads),
    )
    states, slots = torch.randn(6, heads, key_dim, value_dim), torch.tensor([4, 1, 2])
    expected, after = delta_step(inputs, states[slots])
    changed = states.clone()
    torch.testing.assert_close(delta_step_in_place(inputs, changed, slots), expected)
    torch.testing.assert_close(changed[slots], after)
    assert torch.equal(changed[[0, 3, 5]], states[[0, 3, 5]]), "other slots stay"


def trees() -> None:
    """Verification and commit of chains and random trees, with states of other slots left alone."""
    for batch, nodes, key_heads, heads, key_dim, value_dim in TREES:
        slots = torch.randperm(NUM_SLOTS)[:batch]
        for tree, dtype in product(_trees(batch, nodes), (torch.float32, NARROW)):
            flat = _delta_inputs(batch * nodes, key_heads, heads, key_dim, value_dim, dtype=dtype)
            states = torch.randn(NUM_SLOTS, heads, key_dim, value_dim)
            before = states.clone()
            expected, stash = verify_delta(_by_tree(flat, nodes), tree.ancestors, states[slots])
            bits = own_bits(tree.ancestors, batch=batch, own=nodes, device=states.device)
            output, own = verify_delta_in_place(flat, bits, states, slots)
            assert torch.equal(states, before), "a verification changes no state"
            rtol, atol = (1e-4, 1e-4) if dtype == torch.float32 else (0.01, 1e-3)
            torch.testing.assert_close(output.unflatten(0, (batch, nodes)), expected, rtol=rtol, atol=atol)
            for name in ("keys", "updates", "totals"):
                torch.testing.assert_close(getattr(own, name), getattr(stash, name), rtol=1e-4, atol=1e-4)
            path = _random_path(tree)
            last, on_path = _last(path), _marks(path, nodes)
            commit_delta_in_place(own, on_path, last, states, slots)
            torch.testing.assert_close(states[slots], _after(flat, path, before[slots]), rtol=1e-4, atol=1e-4)
            others = [slot for slot in range(NUM_SLOTS) if slot not in slots.tolist()]
            assert torch.equal(states[others], before[others]), "other slots stay"


def convolution() -> None:
    """Single tokens, trees and commits, with channels whose rows lie apart."""
    for batch, nodes, width, num_channels in ((2, 8, 4, 300), (3, 1, 4, 16), (1, 5, 3, 257), (4, 20, 2, 64)):
        slots = torch.randperm(NUM_SLOTS)[:batch]
        weight = torch.randn(num_channels, width)
        past = torch.randn(NUM_SLOTS, num_channels, width - 1)
        channels = torch.randn(batch * nodes, num_channels + 7)[:, :num_channels]
        before = past.clone()
        for tree in _trees(batch, nodes):
            sources = convolution_sources(tree.parents, width=width)
            parted = channels.unflatten(0, (batch, nodes))
            expected, columns = verify_convolution(parted, weight, past[slots], sources)
            torch.testing.assert_close(convolve_tree(channels, weight, past, slots, sources), expected.flatten(0, 1))
            assert torch.equal(past, before), "a verification changes no state"
            last, changed = _last(_random_path(tree)), before.clone()
            commit_convolution_in_place(channels, changed, slots, sources, last)
            window = sources[torch.arange(batch), last, 1:]  # [B, width - 1]
            wanted = before.clone()
            wanted[slots] = columns[torch.arange(batch)[:, None], window].transpose(1, 2)
            assert torch.equal(changed, wanted), "the window of the last node, and no other slot"
        single, changed = channels[:batch], before.clone()
        expected, after = convolve_chunk(single[:, None], weight, before[slots], None)
        torch.testing.assert_close(convolve_step_in_place(single, weight, changed, slots), expected[:, 0])
        wanted = before.clone()
        wanted[slots] = after
        assert torch.equal(changed, wanted), "one column on, and no other slot"


def _delta_inputs(
    num_rows: int, key_heads: int, heads: int, key_dim: int, value_dim: int, *, dtype: torch.dtype
) -> DeltaInputs:
    """Views into one tensor, as the layer gives them."""
    wide = (key_heads * key_dim, key_heads * key_dim, heads * value_dim)
    query, key, value = torch.randn(num_rows, sum(wide)).to(dtype).split(wide, dim=-1)
    return DeltaInputs(
        query=query.unflatten(-1, (key_heads, key_dim)),
        key=key.unflatten(-1, (key_heads, key_dim)),
        value=value.unflatten(-1, (heads, value_dim)),
        log_decay=-torch.rand(num_rows, heads),
        beta=torch.rand(num_rows, heads),
    )


def _by_tree(inputs: DeltaInputs, nodes: int) -> DeltaInputs:
    names = ("query", "key", "value", "log_decay", "beta")
    return DeltaInputs(**{name: getattr(inputs, name).unflatten(0, (-1, nodes)) for name in names})


def _trees(batch: int, nodes: int) -> list[Tree]:
    parents = [[-1, *(int(torch.randint(0, node, (1,))) for node in range(1, nodes))] for _ in range(batch)]
    tokens = torch.arange(batch * nodes).view(batch, nodes)
    return [chain(tokens[:, 0], tokens[:, 1:]), tree_of(tokens, torch.tensor(parents))]


def _random_path(tree: Tree) -> Path:
    """From the anchor to any node; past its end, nodes that are not on it."""
    last = torch.randint(0, tree.num_nodes, (tree.tokens.shape[0],))
    on_path = tree.ancestors[torch.arange(len(last)), last]
    nodes = (~on_path).long().sort(dim=1, stable=True).indices
    return Path(nodes=nodes, num_nodes=on_path.sum(1), emitted=nodes)


def _last(path: Path) -> Tensor:
    return path.nodes.gather(1, path.num_nodes[:, None] - 1)[:, 0]


def _marks(path: Path, nodes: int) -> Tensor:
    marks = torch.zeros(path.nodes.shape[0], nodes, dtype=torch.bool)
    for row, count in enumerate(path.num_nodes.tolist()):
        marks[row, path.nodes[row, :count]] = True
    return marks


def _after(inputs: DeltaInputs, path: Path, states: Tensor) -> Tensor:
    """Token by token along each path, from the definition."""
    names, nodes, ended = ("query", "key", "value", "log_decay", "beta"), path.nodes.shape[1], []
    for row, count in enumerate(path.num_nodes.tolist()):
        state = states[row : row + 1]
        for node in path.nodes[row, :count].tolist():
            at = row * nodes + node
            one = DeltaInputs(**{name: getattr(inputs, name)[at : at + 1] for name in names})
            _, state = delta_step(one, state)
        ended.append(state)
    return torch.cat(ended)


def _random_ancestors(batch: int, own: int) -> Tensor:
    ancestors = torch.eye(own, dtype=torch.bool).repeat(batch, 1, 1)
    for sequence in range(batch):
        for row in range(1, own):
            ancestors[sequence, row] |= ancestors[sequence, int(torch.randint(0, row, (1,)))]
    return ancestors


def _attention(query: Tensor, pools: list[Tensor], table: Tensor, past: Tensor, seen: Tensor) -> Tensor:
    """Row by row and head by head."""
    output, own, groups = torch.empty_like(query), seen.shape[1], query.shape[1] // pools[0].shape[1]
    for sequence in range(len(table)):
        keys, values = (pool[table[sequence]].transpose(0, 1).flatten(1, 2) for pool in pools)
        for row in range(own):
            begin = int(past[sequence])
            visible = [*range(begin), *(begin + other for other in range(own) if seen[sequence, row, other])]
            for head in range(query.shape[1]):
                one = query[sequence * own + row, head]
                weights = torch.softmax(keys[head // groups, visible] @ one * query.shape[-1] ** -0.5, dim=0)
                output[sequence * own + row, head] = weights @ values[head // groups, visible]
    return output


if __name__ == "__main__":
    if os.environ.get("TRITON_INTERPRET") != "1":
        torch.set_default_device("cuda")
    torch.manual_seed(0)
    {"attention": attention, "delta": delta, "trees": trees, "convolution": convolution}[sys.argv[1]]()
    sys.stdout.write("they agree\n")
