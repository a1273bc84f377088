"""Policies against paths one by one, and what must hold between them."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import UsageError
from lossguard_mechanisms.replay.choice import choose_policies
from lossguard_mechanisms.replay.policies import (
    POLICIES,
    BestFirst,
    Chain,
    Oracle,
    Policy,
    Static,
    accepted_everywhere,
    positions_of,
)
from lossguard_mechanisms.replay.recording import Lattices
from lossguard_mechanisms.replay.soundness import problems_of
from lossguard_mechanisms.trees.static_shape import static_paths
from tests.mechanisms.replay.toy_recordings import recording
from tests.mechanisms.trees.slow_trees import all_paths_in_order, num_accepted_slowly

SEEDS = st.integers(0, 10**6)


def budgeted(name: str, num_nodes: int, lattices: Lattices) -> Policy:
    """A policy with a budget, by name."""
    (policy,) = choose_policies([name], [num_nodes], lattices, "toy").policies
    return policy


@given(seed=SEEDS, num_nodes=st.integers(1, 30))
def test_best_first_on_marginals_is_the_tree_of_largest_products(seed: int, num_nodes: int) -> None:
    toy = recording([6, 3], num_depths=3, num_candidates=4, seed=seed)
    found = accepted_everywhere(toy, BestFirst(num_nodes=num_nodes, num_depths=3, on_edges=False))
    (positions,) = positions_of(toy)
    for row, own in enumerate(toy.lattices.log_probs.astype(np.float32)):
        steps = np.stack([np.tile(depth, (4, 1)) for depth in own[1:]])
        paths = {path for path, _ in all_paths_in_order(own[0], steps)[:num_nodes]}
        assert found[row] == num_accepted_slowly(paths, positions.true_ranks[row].tolist())


@given(seed=SEEDS, num_nodes=st.integers(1, 30))
def test_best_first_on_edges_is_the_tree_of_largest_conditional_products(seed: int, num_nodes: int) -> None:
    toy = recording([6, 3], num_depths=3, num_candidates=4, seed=seed)
    found = accepted_everywhere(toy, BestFirst(num_nodes=num_nodes, num_depths=3, on_edges=True))
    (positions,) = positions_of(toy)
    assert toy.lattices.anchor_edges is not None
    assert toy.lattices.edges is not None
    for row in range(9):
        first, steps = toy.lattices.anchor_edges[row].astype(np.float32), toy.lattices.edges[row].astype(np.float32)
        paths = {path for path, _ in all_paths_in_order(first, steps)[:num_nodes]}
        assert found[row] == num_accepted_slowly(paths, positions.true_ranks[row].tolist())


@given(seed=SEEDS)
def test_edges_that_ignore_the_predecessor_change_nothing(seed: int) -> None:
    toy = recording(seed=seed)
    own = toy.lattices.log_probs
    shape = (own.shape[0], own.shape[1] - 1, own.shape[2], own.shape[2])
    repeated = np.broadcast_to(own[:, 1:, None, :], shape).copy()
    same = replace(toy, lattices=replace(toy.lattices, anchor_edges=own[:, 0].copy(), edges=repeated))
    marginals = accepted_everywhere(same, BestFirst(num_nodes=7, num_depths=4, on_edges=False))
    edges = accepted_everywhere(same, BestFirst(num_nodes=7, num_depths=4, on_edges=True))
    assert marginals.tolist() == edges.tolist()


@given(seed=SEEDS, name=st.sampled_from(["ddtree", "best-first", "eagle-2", "static"]))
def test_more_nodes_never_accept_less_and_no_tree_beats_the_oracle(seed: int, name: str) -> None:
    toy = recording([12, 7, 9], seed=seed)
    bound = accepted_everywhere(toy, Oracle(num_depths=4))
    before = np.zeros_like(bound)
    for num_nodes in (1, 2, 3, 5, 8, 13, 40):
        now = accepted_everywhere(toy, budgeted(name, num_nodes, toy.lattices))
        assert (now >= before).all()
        assert (now <= bound).all()
        before = now


@given(seed=SEEDS)
def test_the_chain_is_the_tree_of_first_candidates(seed: int) -> None:
    """With one candidate a depth all trees of enough nodes are one chain."""
    toy = recording(num_candidates=1, seed=seed)
    chain = accepted_everywhere(toy, Chain(num_depths=4)).tolist()
    assert accepted_everywhere(toy, BestFirst(num_nodes=4, num_depths=4, on_edges=False)).tolist() == chain
    assert accepted_everywhere(toy, Static(num_nodes=9, num_depths=4, num_candidates=1)).tolist() == chain
    assert accepted_everywhere(toy, Oracle(num_depths=4)).tolist() == chain


def test_a_full_tree_accepts_what_the_oracle_accepts() -> None:
    toy = recording([20, 20], num_depths=3, num_candidates=3)
    oracle = accepted_everywhere(toy, Oracle(num_depths=3)).tolist()
    num_nodes = 3 + 9 + 27
    for name in ("ddtree", "best-first", "static"):
        assert accepted_everywhere(toy, budgeted(name, num_nodes, toy.lattices)).tolist() == oracle
    assert max(oracle) == 3
    assert min(oracle) == 0


def test_the_drafters_own_chain_may_leave_its_candidates() -> None:
    toy = recording([5], num_depths=2)
    chain = toy.replies.future(2).astype(np.int32).clip(min=0)
    other = replace(toy, lattices=replace(toy.lattices, chain=chain))
    assert accepted_everywhere(other, Chain(num_depths=2)).tolist() == [2, 2, 2, 2, 1]
    assert accepted_everywhere(other, Chain(num_depths=1)).tolist() == [1, 1, 1, 1, 1]


def test_nothing_is_accepted_past_the_end_of_a_reply() -> None:
    toy = recording([4, 3], num_candidates=5)
    everything = replace(toy, lattices=replace(toy.lattices, ids=_true_first(toy.replies.future(4))))
    assert accepted_everywhere(everything, Oracle(num_depths=4)).tolist() == [4, 3, 2, 1, 3, 2, 1]


def test_positions_may_be_taken_in_any_pieces() -> None:
    toy = recording([12, 7])
    policy = BestFirst(num_nodes=6, num_depths=4, on_edges=True)
    pieces = [policy.accepted(positions) for positions in positions_of(toy, at_once=5)]
    assert [len(piece) for piece in pieces] == [5, 5, 5, 4]
    assert np.concatenate(pieces).tolist() == accepted_everywhere(toy, policy).tolist()


def test_edges_of_fewer_candidates_leave_the_others_out() -> None:
    toy = recording([12, 7, 9], seed=4)
    assert toy.lattices.edges is not None
    assert toy.lattices.anchor_edges is not None
    fewer = replace(
        toy,
        lattices=replace(
            toy.lattices, anchor_edges=toy.lattices.anchor_edges[:, :2], edges=toy.lattices.edges[:, :, :2, :2]
        ),
    )
    assert problems_of(fewer) == []
    found = accepted_everywhere(fewer, BestFirst(num_nodes=1000, num_depths=4, on_edges=True))
    (positions,) = positions_of(fewer)
    hits = np.logical_and.accumulate(positions.true_ranks < 2, axis=1).sum(axis=1)
    assert found.tolist() == hits.tolist()
    assert "2 of 5 candidates" in choose_policies([], [4], fewer.lattices, "toy").reasons[0]


def test_without_names_every_policy_that_the_recording_allows_is_taken() -> None:
    with_edges, without = recording().lattices, recording(has_edges=False).lattices
    chosen = choose_policies([], [16, 8, 8], with_edges, "toy")
    assert [(policy.name, policy.num_nodes) for policy in chosen.policies] == [
        ("chain", 4),
        ("ddtree", 8),
        ("ddtree", 16),
        ("best-first", 8),
        ("best-first", 16),
        ("eagle-2", 8),
        ("eagle-2", 16),
        ("static", 8),
        ("static", 16),
        ("oracle", None),
    ]
    fewer = choose_policies([], [8], without, "dflash2")
    assert {policy.name for policy in fewer.policies} == set(POLICIES) - {"best-first", "eagle-2"}
    assert "best-first, eagle-2 left out: no edges of dflash2 are recorded" in fewer.reasons


def test_a_drafter_that_scores_no_pairs_has_its_own_probabilities() -> None:
    toy = recording([20, 9], has_edges=False)
    chosen = choose_policies(["ddtree", "best-first", "eagle-2"], [8], toy.lattices, "eagle3")
    assert "eagle3 scores no pairs of candidates" in chosen.reasons[0]
    marginals, own, _ = (accepted_everywhere(toy, policy).tolist() for policy in chosen.policies)
    assert own == marginals


@pytest.mark.parametrize(("name", "code"), [("best-frist", "LG1607"), ("best-first", "LG1608"), ("eagle-2", "LG1608")])
def test_a_policy_that_cannot_be_is_refused(name: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        choose_policies([name], [8], recording(has_edges=False).lattices, "dflash2")
    assert caught.value.code == code


def test_static_paths_come_after_their_parents_and_do_not_repeat() -> None:
    paths = static_paths(60, num_depths=5, num_candidates=4)
    assert len(set(paths)) == 60
    assert paths[0] == (0,)
    seen: set[tuple[int, ...]] = {()}
    for path in paths:
        assert path[:-1] in seen
        seen.add(path)
    assert max(map(len, paths)) == 5
    assert len(static_paths(10**6, num_depths=2, num_candidates=3)) == 3 + 9


def _true_first(future: np.ndarray) -> np.ndarray:
    """Candidates whose first is the true token."""
    true = future.clip(min=0)[:, :, None]
    others = np.arange(4)[None, None, :]
    return np.concatenate([true, others + (others >= true)], axis=2).astype(np.int32)
