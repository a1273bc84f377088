"""Words of ancestors, checked against walks from node to root."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lossguard_kernels.forests.forest import ancestor_words, forest_of, forest_of_batch
from lossguard_kernels.wy_verify.naive import path_to

PARENTS = st.integers(1, 64).flatmap(lambda size: st.tuples(*(st.integers(-1, node - 1) for node in range(size))))


@given(PARENTS)
def test_bits_are_the_path(parents: tuple[int, ...]) -> None:
    words = torch.tensor(ancestor_words(parents))
    for node in range(len(parents)):
        assert [j for j in range(64) if int(words[node]) >> j & 1] == path_to(parents, node)


def test_ragged_trees_lie_one_after_the_other() -> None:
    forest = forest_of([[-1, 0], [], [-1, 0, 0]])
    assert forest.firsts.tolist() == [0, 2, 2]
    assert forest.counts.tolist() == [2, 0, 3]
    assert forest.bits.tolist() == [1, 3, 1, 3, 5]
    assert (forest.most_nodes, forest.tile, forest.num_trees) == (3, 16, 3)


def test_a_batch_of_words_is_the_same_forest() -> None:
    tree = [-1, *range(62), 5]
    one, other = forest_of([tree, tree]), forest_of_batch(torch.tensor([ancestor_words(tree)] * 2))
    for name in ("firsts", "counts", "bits"):
        assert torch.equal(getattr(one, name), getattr(other, name))
    assert (one.most_nodes, one.tile) == (other.most_nodes, other.tile) == (64, 64)


def test_words_of_single_nodes_lie_one_after_the_other() -> None:
    assert forest_of_batch(torch.ones(1, dtype=torch.int64).expand(3, 1)).bits.is_contiguous()
