"""A tree's rows against each path run alone, token by token in float64, and the commit against running the path."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from lossguard_mechanisms.engine.verification import (
    LONGEST_BY_ROWS,
    convolution_sources,
    solve_by_rows,
    verify_convolution,
    verify_delta,
)
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.targets.naive import convolve_by_token, recur_by_token
from lossguard_mechanisms.trees.tree import Tree, tree_of

KEY_HEADS, HEADS, KEY_DIM, VALUE_DIM, CHANNELS, WIDTH = 2, 4, 5, 6, 7, 4


def random_tree(num_nodes: int, seed: int) -> Tree:
    """One tree, parents before children."""
    generator = torch.Generator().manual_seed(seed)
    parents = [-1, *(int(torch.randint(0, node, (1,), generator=generator)) for node in range(1, num_nodes))]
    return tree_of(torch.arange(num_nodes)[None], torch.tensor([parents]))


def path_to(tree: Tree, node: int) -> list[int]:
    """Nodes from the anchor to ``node``."""
    return [other for other in range(node + 1) if bool(tree.ancestors[0, node, other])]


def random_inputs(num_rows: int, seed: int) -> DeltaInputs:
    """Leading [N], float64."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    return DeltaInputs(
        query=normal(num_rows, KEY_HEADS, KEY_DIM),
        key=normal(num_rows, KEY_HEADS, KEY_DIM),
        value=normal(num_rows, HEADS, VALUE_DIM),
        log_decay=-normal(num_rows, HEADS).abs(),
        beta=normal(num_rows, HEADS).sigmoid(),
    )


def rows_of_inputs(inputs: DeltaInputs, rows: list[int]) -> DeltaInputs:
    """These rows only."""
    return DeltaInputs(
        query=inputs.query[rows],
        key=inputs.key[rows],
        value=inputs.value[rows],
        log_decay=inputs.log_decay[rows],
        beta=inputs.beta[rows],
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 10), st.integers(0, 10_000))
def test_delta_of_a_tree_is_that_of_its_paths(num_nodes: int, seed: int) -> None:
    tree, inputs = random_tree(num_nodes, seed), random_inputs(num_nodes, seed)
    state = torch.randn(HEADS, KEY_DIM, VALUE_DIM, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    batched = DeltaInputs(
        query=inputs.query[None],
        key=inputs.key[None],
        value=inputs.value[None],
        log_decay=inputs.log_decay[None],
        beta=inputs.beta[None],
    )
    before = state.clone()
    outputs, stash = verify_delta(batched, tree.ancestors, state[None])
    assert torch.equal(state, before)
    for node in range(num_nodes):
        path = path_to(tree, node)
        expected, after = recur_by_token(rows_of_inputs(inputs, path), state, dtype=torch.float64)
        torch.testing.assert_close(outputs[0, node], expected[-1])
        keys = stash.keys[0].repeat_interleave(HEADS // KEY_HEADS, 0)[:, path]
        weights = (stash.totals[0, :, [node]] - stash.totals[0][:, path]).exp()
        folded = stash.totals[0, :, node].exp()[:, None, None] * state
        folded = folded + (keys * weights[..., None]).transpose(-1, -2) @ stash.updates[0][:, path]
        torch.testing.assert_close(folded, after)


@settings(max_examples=20, deadline=None)
@given(st.integers(1, LONGEST_BY_ROWS), st.integers(0, 10_000))
def test_solving_by_rows_is_forward_substitution(num_nodes: int, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    system = torch.rand(2, num_nodes, num_nodes, generator=generator, dtype=torch.float64) - 0.5
    right = torch.randn(2, num_nodes, 3, generator=generator, dtype=torch.float64)
    expected = torch.linalg.solve_triangular(system, right, upper=False, unitriangular=True)
    torch.testing.assert_close(solve_by_rows(system, right), expected)


@pytest.mark.parametrize("slowest_decay", [0.0, 0.05])
@pytest.mark.parametrize("least_rate", [0.0, 0.8, 0.95])
def test_solving_by_rows_keeps_float32_where_keys_are_alike(least_rate: float, slowest_decay: float) -> None:
    """Where products of powers of T are wrong by 4e-6 to 4e-4: keys point the same way, rates go up to one."""
    generator = torch.Generator().manual_seed(0)
    shape = (64, LONGEST_BY_ROWS)
    rates = least_rate + (1 - least_rate) * torch.rand(shape, generator=generator, dtype=torch.float64)
    totals = (-slowest_decay * torch.rand(shape, generator=generator, dtype=torch.float64)).cumsum(-1)
    decay = (totals[:, :, None] - totals[:, None]).tril().exp()
    keys = torch.ones(64, LONGEST_BY_ROWS, 128, dtype=torch.float64)
    keys += 0.01 * torch.randn(keys.shape, generator=generator, dtype=torch.float64)
    keys /= keys.norm(dim=-1, keepdim=True)
    system = (rates[..., None] * decay * (keys @ keys.transpose(1, 2))).float()
    right = (rates[..., None] * torch.randn(64, LONGEST_BY_ROWS, 32, generator=generator, dtype=torch.float64)).float()
    exact = torch.linalg.solve_triangular(system.double(), right.double(), upper=False, unitriangular=True)
    assert float((solve_by_rows(system, right) - exact).abs().max() / exact.abs().max()) < 1e-6


@settings(max_examples=25, deadline=None)
@given(st.integers(1, 10), st.integers(0, 4), st.integers(0, 10_000))
def test_convolution_of_a_tree_is_that_of_its_paths(num_nodes: int, num_before: int, seed: int) -> None:
    tree = random_tree(num_nodes, seed)
    generator = torch.Generator().manual_seed(seed)
    before = torch.randn(num_before, CHANNELS, generator=generator, dtype=torch.float64)
    channels = torch.randn(num_nodes, CHANNELS, generator=generator, dtype=torch.float64)
    weight = torch.randn(CHANNELS, WIDTH, generator=generator, dtype=torch.float64)
    past = torch.cat((torch.zeros(WIDTH - 1, CHANNELS, dtype=torch.float64), before))[-(WIDTH - 1) :].T[None]
    sources = convolution_sources(tree.parents, width=WIDTH)
    mixed, columns = verify_convolution(channels[None], weight, past, sources)
    for node in range(num_nodes):
        rows = torch.cat((before, channels[path_to(tree, node)]))
        torch.testing.assert_close(mixed[0, node], convolve_by_token(rows, weight, dtype=torch.float64)[-1])
        kept = torch.cat((torch.zeros(WIDTH - 1, CHANNELS, dtype=torch.float64), rows))[-(WIDTH - 1) :]
        torch.testing.assert_close(columns[0, sources[0, node, 1:]], kept)
