"""Trees of all policies: the device's equal numpy's, and each is a tree of the lattice's own candidates."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lossguard.errors import UsageError
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.trees import beam
from lossguard_mechanisms.trees.best_first import NO_NODE, Trees, best_first_trees
from lossguard_mechanisms.trees.choice import LatticeSizes, TreeOrder, policy_for
from lossguard_mechanisms.trees.dynamic import dynamic_trees
from lossguard_mechanisms.trees.policies import BestFirstPolicy, ChainPolicy, DynamicPolicy, StaticPolicy
from lossguard_mechanisms.trees.tree import MAX_NODES, Tree, chain, require_tree, tree_of
from tests.mechanisms.trees.slow_trees import paths_by_heap

SIZES = {"num_depths": st.integers(1, 4), "num_candidates": st.integers(1, 4)}


def lattice_of(seed: int, *, batch: int = 3, num_depths: int = 4, num_candidates: int = 4) -> Lattice:
    """Random candidates, no token twice in a depth."""
    generator = torch.Generator().manual_seed(seed)
    ids = torch.stack(
        [
            torch.stack([torch.randperm(50, generator=generator)[:num_candidates] for _ in range(num_depths)])
            for _ in range(batch)
        ]
    )
    raw = torch.randn(batch, num_depths, num_candidates + 5, generator=generator) * 2
    pairs = torch.randn(batch, num_depths, num_candidates, num_candidates, generator=generator) * 2
    return Lattice(
        ids=ids,
        log_probs=raw.log_softmax(dim=-1).sort(dim=-1, descending=True).values[..., :num_candidates],
        chain=ids[:, :, 0],
        edges=pairs,
        confidence=None,
    )


def scores_of(seed: int, num_depths: int, num_candidates: int, grid: float | None) -> tuple[np.ndarray, np.ndarray]:
    """On a grid many paths have the same score."""
    generator = np.random.default_rng(seed)
    raw = -generator.exponential(1.0, (3, num_depths, num_candidates, num_candidates))
    values = (raw if grid is None else np.ceil(raw / grid) * grid).astype(np.float32)
    return np.ascontiguousarray(values[:, 0, 0]), np.ascontiguousarray(values[:, 1:])


def assert_same(nodes: beam.Nodes, trees: Trees) -> None:
    assert not (trees.parents == NO_NODE).any()
    for name in ("parents", "depths", "ranks"):
        assert getattr(nodes, name).tolist() == getattr(trees, name).tolist(), name
    assert np.array_equal(nodes.scores.numpy(), trees.scores)


@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 40), grid=st.sampled_from([None, 0.5, 2.0]), **SIZES)
def test_best_first_on_the_device_is_numpys(
    seed: int, num_nodes: int, grid: float | None, num_depths: int, num_candidates: int
) -> None:
    first, steps = scores_of(seed, num_depths, num_candidates, grid)
    num_nodes = min(num_nodes, sum(num_candidates**depth for depth in range(1, num_depths + 1)))
    nodes = beam.best_first(torch.from_numpy(first), torch.from_numpy(steps), num_nodes)
    assert_same(nodes, best_first_trees(first, steps, num_nodes))


@pytest.mark.parametrize("on_edges", [False, True])
@pytest.mark.parametrize(("num_drafts", "num_depths", "num_candidates"), [(15, 7, 16), (63, 7, 16), (9, 4, 3)])
def test_the_kernel_grows_the_same_trees(
    *, on_edges: bool, num_drafts: int, num_depths: int, num_candidates: int
) -> None:
    lattice, anchors = lattice_of(num_drafts, num_depths=num_depths, num_candidates=num_candidates), torch.arange(3)
    if num_candidates == 3:  # with ties
        assert lattice.edges is not None
        lattice = replace(lattice, log_probs=lattice.log_probs.round(), edges=torch.zeros_like(lattice.edges))
    kernel, without = (
        BestFirstPolicy(num_drafts, on_edges=on_edges, has_kernel=has_kernel).build(lattice, anchors)
        for has_kernel in (True, False)
    )
    assert kernel.longest_path == without.longest_path
    for name in ("tokens", "parents", "depths", "ancestors"):
        assert torch.equal(getattr(kernel, name), getattr(without, name)), name


@given(
    seed=st.integers(0, 10**6), num_nodes=st.integers(1, 12), grid=st.sampled_from([None, 0.5]), width=st.integers(2, 4)
)
def test_the_dynamic_tree_on_the_device_is_numpys(seed: int, num_nodes: int, grid: float | None, width: int) -> None:
    first, steps = scores_of(seed, 4, 4, grid)
    nodes = beam.dynamic(torch.from_numpy(first), torch.from_numpy(steps), num_nodes, width=width)
    assert_same(nodes, dynamic_trees(first, steps, num_nodes, width=width))


@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 60))
def test_a_dynamic_tree_without_bounds_is_best_first(seed: int, num_nodes: int) -> None:
    """All 64 nodes of a layer expanded into all their children."""
    first, steps = scores_of(seed, 3, 4, None)
    wide, best = dynamic_trees(first, steps, num_nodes, width=64), best_first_trees(first, steps, num_nodes)
    assert np.array_equal(np.sort(wide.scores, axis=1), np.sort(best.scores, axis=1))


@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 12))
def test_a_dynamic_tree_is_a_part_of_the_paths_and_never_better(seed: int, num_nodes: int) -> None:
    first, steps = scores_of(seed, 4, 4, None)
    narrow, best = dynamic_trees(first, steps, num_nodes, width=2), best_first_trees(first, steps, num_nodes)
    assert (np.exp(narrow.scores).sum(axis=1) <= np.exp(best.scores).sum(axis=1) + 1e-6).all()


POLICIES = [
    BestFirstPolicy(12, on_edges=True),
    BestFirstPolicy(12, on_edges=False),
    DynamicPolicy(12, on_edges=True, width=3),
    StaticPolicy(12),
    BestFirstPolicy(8, on_edges=True, num_depths=2),
]


@pytest.mark.parametrize("policy", POLICIES)
@settings(max_examples=20)
@given(seed=st.integers(0, 10**6))
def test_a_policy_makes_a_tree_of_the_lattices_candidates(policy: BestFirstPolicy, seed: int) -> None:
    lattice, anchors = lattice_of(seed), torch.tensor([7, 8, 9])
    tree = policy.build(lattice, anchors)
    assert tree.tokens.shape == (3, policy.num_nodes)
    assert tree.tokens[:, 0].tolist() == [7, 8, 9]
    require_tree(tree.tokens, tree.parents)
    for row in range(3):
        for node in range(1, policy.num_nodes):
            assert int(tree.tokens[row, node]) in lattice.ids[row, int(tree.depths[row, node]) - 1].tolist()


@given(seed=st.integers(0, 10**6))
def test_ddtree_is_the_heap_on_the_candidates_own_probabilities(seed: int) -> None:
    lattice = lattice_of(seed)
    tree = BestFirstPolicy(10, on_edges=False).build(lattice, torch.zeros(3, dtype=torch.int64))
    for row in range(3):
        own = lattice.log_probs[row].numpy()
        steps = np.broadcast_to(own[1:, None, :], (3, 4, 4))
        expected = {tuple(int(lattice.ids[row, depth, rank]) for depth, rank in enumerate(path))
                    for path in paths_by_heap(own[0], steps, 10)}  # fmt: skip
        assert {path_of(tree, row, node) for node in range(1, 11)} == expected


def path_of(tree: Tree, row: int, node: int) -> tuple[int, ...]:
    tokens = []
    while node > 0:
        tokens.append(int(tree.tokens[row, node]))
        node = int(tree.parents[row, node])
    return tuple(reversed(tokens))


@given(seed=st.integers(0, 10**6), size=st.integers(1, MAX_NODES))
def test_depths_ancestors_and_bits_follow_from_parents(seed: int, size: int) -> None:
    rng = np.random.default_rng(seed)
    parents = [-1, *(int(rng.integers(0, node)) for node in range(1, size))]
    tree = tree_of(torch.arange(size)[None], torch.tensor([parents]))
    bits = tree.ancestor_bits()[0].tolist()
    for node in range(size):
        line, at = {node}, node
        while at:
            at = parents[at]
            line.add(at)
        assert set(torch.nonzero(tree.ancestors[0, node]).flatten().tolist()) == line
        assert int(tree.depths[0, node]) == len(line) - 1
        assert {bit for bit in range(64) if bits[node] >> bit & 1} == line
    assert tree.positions(torch.tensor([5]))[0].tolist() == [5 + depth for depth in tree.depths[0].tolist()]


def test_a_chain_is_the_tree_of_its_parents() -> None:
    lattice = lattice_of(0)
    made = ChainPolicy(3).build(lattice, torch.tensor([1, 2, 3]))
    same = tree_of(made.tokens, made.parents)
    assert torch.equal(made.ancestors, same.ancestors)
    assert torch.equal(made.depths, same.depths)


@pytest.mark.parametrize(
    ("parents", "shown"),
    [
        ([-1, 2, 0], "node 1 of sequence 0 has parent 2"),
        ([-1, 1, 0], "node 1 of sequence 0 has parent 1"),
        ([0, 0, 0], "the anchor has a parent"),
        ([-1, -1, 0], "node 1 of sequence 0 has parent -1"),
    ],
)
def test_parents_that_are_no_tree_are_refused(parents: list[int], shown: str) -> None:
    with pytest.raises(UsageError, match=shown) as caught:
        require_tree(torch.tensor([[4, 5, 6]]), torch.tensor([parents]))
    assert caught.value.code == "LG1902"


def test_equal_siblings_and_large_trees_are_refused() -> None:
    with pytest.raises(UsageError, match="two siblings"):
        require_tree(torch.tensor([[4, 5, 5]]), torch.tensor([[-1, 0, 0]]))
    require_tree(torch.tensor([[4, 5, 5]]), torch.tensor([[-1, 0, 1]]))
    large = chain(torch.zeros(1, dtype=torch.int64), torch.zeros(1, MAX_NODES, dtype=torch.int64))
    with pytest.raises(UsageError, match="65 nodes"):
        require_tree(large.tokens, large.parents)
    with pytest.raises(UsageError, match="65 nodes") as caught:
        large.ancestor_bits()
    assert caught.value.code == "LG1901"


def test_the_longest_path_is_what_depth_and_nodes_allow() -> None:
    lattice, anchors = lattice_of(3), torch.zeros(3, dtype=torch.int64)
    tree = BestFirstPolicy(9, on_edges=False, num_depths=3).build(lattice, anchors)
    assert (tree.num_nodes, tree.longest_path) == (10, 4)
    assert int(tree.depths.max()) <= 3
    assert StaticPolicy(2).build(lattice, anchors).longest_path == 3
    assert chain(anchors, torch.zeros(3, 5, dtype=torch.int64)).longest_path == 6


@pytest.mark.parametrize("size", [0, MAX_NODES])
def test_sizes_that_no_tree_has_are_refused(size: int) -> None:
    for make in (lambda: BestFirstPolicy(size, on_edges=False), lambda: DynamicPolicy(size, on_edges=False),
                 lambda: StaticPolicy(size)):  # fmt: skip
        with pytest.raises(UsageError, match="1 to 63"):
            make()


def test_what_a_lattice_does_not_have_is_refused() -> None:
    small, anchors = lattice_of(0, num_depths=2, num_candidates=2), torch.zeros(3, dtype=torch.int64)
    for policy in (BestFirstPolicy(7, on_edges=False), StaticPolicy(7), DynamicPolicy(7, on_edges=False)):
        with pytest.raises(UsageError, match="6") as caught:
            policy.build(small, anchors)
        assert caught.value.code == "LG1901"
    with pytest.raises(UsageError, match="reaches depth 3") as caught:
        BestFirstPolicy(2, on_edges=False, num_depths=3).build(small, anchors)
    assert caught.value.code == "LG1903"


SIZES_OF_EAGLE3 = LatticeSizes(drafter="eagle3", num_depths=3, num_candidates=2)
SIZES_OF_DFLASH2 = LatticeSizes(drafter="dflash2", num_depths=3, num_candidates=2)


def test_names_become_policies_with_their_reason() -> None:
    lattice, anchors = lattice_of(5, num_depths=3, num_candidates=2), torch.zeros(3, dtype=torch.int64)
    for name, edges in (("best-first", True), ("ddtree", False)):
        policy, reason = policy_for(TreeOrder(policy=name, num_nodes=6), SIZES_OF_DFLASH2)
        expected = BestFirstPolicy(6, on_edges=edges).build(lattice, anchors)
        assert policy.build(lattice, anchors).tokens.tolist() == expected.tokens.tolist()
        assert ("pairs" in reason) is edges
    own, reason = policy_for(TreeOrder(policy="best-first", num_nodes=6), SIZES_OF_EAGLE3)
    assert "since eagle3 scores no pairs" in reason
    assert own.build(replace(lattice, edges=None), anchors).tokens.tolist() == expected.tokens.tolist()
    assert policy_for(TreeOrder(policy="chain", num_depths=2), SIZES_OF_EAGLE3)[0].num_nodes == 3
    assert policy_for(TreeOrder(policy="static", num_nodes=3, num_depths=2), SIZES_OF_EAGLE3)[0].num_depths == 2


@pytest.mark.parametrize(
    ("order", "code"),
    [
        (TreeOrder(policy="best-first", num_nodes=64), "LG1901"),
        (TreeOrder(policy="best-first", num_nodes=15), "LG1901"),
        (TreeOrder(policy="eagle-2", num_nodes=11), "LG1901"),
        (TreeOrder(policy="static", num_nodes=3, num_depths=1), "LG1901"),
        (TreeOrder(policy="ddtree", num_nodes=3, num_depths=4), "LG1903"),
        (TreeOrder(policy="chain", num_depths=4), "LG1903"),
    ],
)
def test_what_no_lattice_of_a_drafter_has_is_refused_before_there_is_one(order: TreeOrder, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        policy_for(order, SIZES_OF_DFLASH2)
    assert caught.value.code == code


def test_pair_scores_that_should_be_there_are_missed() -> None:
    lattice = replace(lattice_of(1), edges=None)
    with pytest.raises(UsageError) as caught:
        BestFirstPolicy(4, on_edges=True).build(lattice, torch.zeros(3, dtype=torch.int64))
    assert caught.value.code == "LG1904"
