"""Layer by layer gives the tree that a heap over all paths gives, ties included."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard_mechanisms.trees.best_first import NO_NODE, ROOT, Trees, best_first_trees, best_places, num_accepted
from tests.mechanisms.trees.slow_trees import Path, all_paths_in_order, num_accepted_slowly, paths_by_heap


def scores_of(
    *, seed: int, num_positions: int, num_depths: int, num_candidates: int, grid: float | None
) -> tuple[np.ndarray, np.ndarray]:
    """Random log-probabilities; on a grid many paths have the same score, and some steps cost nothing."""
    generator = np.random.default_rng(seed)
    shape = (num_positions, num_depths, num_candidates, num_candidates)
    raw = -generator.exponential(1.0, shape)
    values = (raw if grid is None else np.ceil(raw / grid) * grid).astype(np.float32)
    return np.ascontiguousarray(values[:, 0, 0]), np.ascontiguousarray(values[:, 1:])


def paths_of(trees: Trees, position: int) -> list[Path]:
    """The path of every node, from its parents."""
    found: dict[int, Path] = {ROOT: ()}
    for node, (parent, depth, rank) in enumerate(
        zip(trees.parents[position], trees.depths[position], trees.ranks[position], strict=True)
    ):
        if depth:
            found[node] = (*found[int(parent)], int(rank))
            assert len(found[node]) == depth
        else:
            assert parent == NO_NODE
    return [path for node, path in found.items() if node != ROOT]


@given(
    seed=st.integers(0, 10**6),
    num_depths=st.integers(1, 4),
    num_candidates=st.integers(1, 4),
    num_nodes=st.integers(1, 40),
    grid=st.sampled_from([None, 0.5, 2.0]),
)
def test_the_tree_is_the_head_of_all_paths_in_order(
    seed: int, num_depths: int, num_candidates: int, num_nodes: int, grid: float | None
) -> None:
    first, steps = scores_of(
        seed=seed, num_positions=3, num_depths=num_depths, num_candidates=num_candidates, grid=grid
    )
    trees = best_first_trees(first, steps, num_nodes)
    for position in range(3):
        expected = all_paths_in_order(first[position], steps[position])[:num_nodes]
        assert set(paths_of(trees, position)) == {path for path, _ in expected}
        kept = trees.scores[position][trees.depths[position] > 0]
        assert sorted(kept) == sorted(score for _, score in expected)


@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 64))
def test_the_tree_is_that_of_a_heap(seed: int, num_nodes: int) -> None:
    first, steps = scores_of(seed=seed, num_positions=2, num_depths=3, num_candidates=4, grid=None)
    trees = best_first_trees(first, steps, num_nodes)
    for position in range(2):
        assert set(paths_of(trees, position)) == paths_by_heap(first[position], steps[position], num_nodes)


@given(seed=st.integers(0, 10**6), num_nodes=st.integers(1, 30))
def test_acceptance_follows_the_true_tokens_as_far_as_there_are_nodes(seed: int, num_nodes: int) -> None:
    first, steps = scores_of(seed=seed, num_positions=20, num_depths=3, num_candidates=3, grid=None)
    trees = best_first_trees(first, steps, num_nodes)
    true_ranks = np.random.default_rng(seed + 1).integers(0, 4, (20, 3))  # 3 is no candidate
    expected = [num_accepted_slowly(set(paths_of(trees, row)), true_ranks[row].tolist()) for row in range(20)]
    assert num_accepted(trees, true_ranks).tolist() == expected


def test_nodes_come_layer_by_layer_and_best_first_in_each() -> None:
    first, steps = scores_of(seed=5, num_positions=30, num_depths=4, num_candidates=4, grid=None)
    trees = best_first_trees(first, steps, 12)
    for depths, scores in zip(trees.depths, trees.scores, strict=True):
        assert (np.diff(depths) >= 0).all()
        assert (np.diff(scores)[np.diff(depths) == 0] <= 0).all()


def test_steps_that_do_not_exist_are_never_taken() -> None:
    first = np.array([[-1.0, -np.inf]], dtype=np.float32)
    steps = np.array([[[[-np.inf, -0.5], [-0.1, -0.1]]]], dtype=np.float32)
    trees = best_first_trees(first, steps, 6)
    assert paths_of(trees, 0) == [(0,), (0, 1)]


@given(
    values=st.lists(st.sampled_from([0.0, -0.0, -1e-30, -0.5, -1.0, -1000.0, -np.inf]), min_size=1, max_size=12),
    count=st.integers(1, 14),
)
def test_best_places_are_a_stable_sort_cut_short(values: list[float], count: int) -> None:
    scores = np.array([values, values[::-1]], dtype=np.float32)
    expected = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    assert best_places(scores, count).tolist() == expected.tolist()


@pytest.mark.parametrize("num_nodes", [1, 5, 64])
def test_one_position_does_not_see_another(num_nodes: int) -> None:
    first, steps = scores_of(seed=8, num_positions=6, num_depths=3, num_candidates=5, grid=None)
    together = best_first_trees(first, steps, num_nodes)
    alone = best_first_trees(first[4:5], steps[4:5], num_nodes)
    assert together.scores[4].tolist() == alone.scores[0].tolist()
    assert together.parents[4].tolist() == alone.parents[0].tolist()
