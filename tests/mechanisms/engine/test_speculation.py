"""Trees as values, and the walk against the plainest possible one."""

from __future__ import annotations

import torch
from hypothesis import given
from hypothesis import strategies as st

from lossguard_mechanisms.engine.speculation import SampleAndMatch
from lossguard_mechanisms.trees.tree import chain, tree_of


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[int]]:
    """(tokens, parents) of a tree whose siblings carry different tokens."""
    size = draw(st.integers(1, 9))
    parents, tokens = [-1], [draw(st.integers(0, 3))]
    for node in range(1, size):
        parent = draw(st.integers(0, node - 1))
        taken = {tokens[other] for other in range(1, node) if parents[other] == parent}
        parents.append(parent)
        tokens.append(draw(st.sampled_from([token for token in range(12) if token not in taken])))
    return tokens, parents


def _walk(tokens: list[int], parents: list[int], chosen: list[int]) -> list[int]:
    nodes = [0]
    while True:
        children = [node for node in range(1, len(tokens)) if parents[node] == nodes[-1]]
        matching = [node for node in children if tokens[node] == chosen[nodes[-1]]]
        if not matching:
            return nodes
        nodes.append(matching[0])


@given(trees(), st.data())
def test_walk_follows_the_targets_tokens(tree: tuple[list[int], list[int]], data: st.DataObject) -> None:
    tokens, parents = tree
    chosen = [data.draw(st.integers(0, 11)) for _ in tokens]
    expected = _walk(tokens, parents, chosen)
    path = SampleAndMatch().walk(tree_of(torch.tensor([tokens]), torch.tensor([parents])), torch.tensor([chosen]))
    length = int(path.num_nodes[0])
    assert path.nodes[0, :length].tolist() == expected
    assert path.emitted[0, :length].tolist() == [chosen[node] for node in expected]


@given(st.lists(st.integers(0, 2), min_size=1, max_size=6), st.data())
def test_a_chain_is_the_tree_without_branches(tokens: list[int], data: st.DataObject) -> None:
    chosen = torch.tensor([[data.draw(st.integers(0, 2)) for _ in tokens]])
    as_chain = chain(torch.tensor(tokens[:1]), torch.tensor([tokens[1:]], dtype=torch.int64))
    as_tree = tree_of(torch.tensor([tokens]), torch.arange(-1, len(tokens) - 1)[None])
    assert torch.equal(as_chain.ancestors, as_tree.ancestors)
    assert torch.equal(as_chain.depths, as_tree.depths)
    paths = [SampleAndMatch().walk(tree, chosen) for tree in (as_chain, as_tree)]
    length = int(paths[0].num_nodes[0])
    assert length == int(paths[1].num_nodes[0])
    assert torch.equal(paths[0].nodes[:, :length], paths[1].nodes[:, :length])
