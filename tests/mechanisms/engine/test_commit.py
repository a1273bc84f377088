"""A branching tree through a whole target: every node's logits, and the states after committing any path."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lossguard_mechanisms.engine.acceleration import Acceleration
from lossguard_mechanisms.engine.commit import TreeStash, commit, new_stash
from lossguard_mechanisms.engine.memory import Memory, MemorySizes
from lossguard_mechanisms.engine.mixings import CommittedMixing, TreeMixing
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.rows import Rows, rows_of
from lossguard_mechanisms.trees.tree import Path, Tree, tree_of
from tests.mechanisms.targets.tiny import FAMILIES, pair, random_ids

PLAIN = Acceleration()
PARENTS = [-1, 0, 0, 1, 2, 2, 4, 3]
PAST = (9, 2)
TABLE = torch.tensor([[3, 7, 1, 5, 12, 14], [0, 9, 2, 8, 13, 15]])  # pages of 4, in no order


def memory_of(target: Target, acceleration: Acceleration = PLAIN) -> Memory:
    """Room for two sequences."""
    sizes = MemorySizes(
        num_slots=2, num_pages=16, page_size=4, capacity=24, num_surplus=8,
        dtype=torch.float32, device=torch.device("cpu"), acceleration=acceleration,
    )  # fmt: skip
    return Memory(target.config, sizes)


def run_committed(target: Target, memory: Memory, parts: list[Tensor], past: list[int]) -> Tensor:
    """Certain rows of both sequences; logits of all rows."""
    rows = rows_of([0, 1], past, [len(part) for part in parts])
    layout = memory.key_values.layout(rows, TABLE)
    mixing = CommittedMixing(rows, layout, recurrent=memory.recurrent, key_values=memory.key_values)
    return target.logits(target(torch.cat(parts), rows.positions, mixing).hidden)


def tree_rows(tree: Tree, past: Tensor) -> Rows:
    """The rows of two trees."""
    return Rows(
        slots=torch.arange(2),
        past_lengths=past,
        lengths=torch.full((2,), tree.num_nodes),
        positions=tree.positions(past).flatten(),
        longest=tree.num_nodes,
        longest_context=max(PAST) + tree.num_nodes,
        places=None,
    )


def verify(target: Target, memory: Memory, tree: Tree) -> tuple[Tensor, TreeStash]:
    """Logits [2, N, V] and the stash."""
    rows = tree_rows(tree, torch.tensor(PAST))
    layout = memory.key_values.layout(rows, TABLE, ancestors=None if tree.is_chain else tree.ancestors)
    stash = new_stash(rows, tree, layout, target.config, torch.float32)
    mixing = TreeMixing(stash, recurrent=memory.recurrent, key_values=memory.key_values)
    output = target(tree.tokens.flatten(), rows.positions, mixing)
    return target.logits(output.hidden).unflatten(0, (2, -1)), stash


def path_to(tree: Tree, sequence: int, node: int) -> list[int]:
    """Nodes from the anchor to ``node``."""
    return [other for other in range(node + 1) if bool(tree.ancestors[sequence, node, other])]


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("ends", [(7, 6), (0, 5), (6, 0)])
def test_a_tree_is_its_paths_and_a_commit_is_running_one(family: str, ends: tuple[int, int]) -> None:
    target = pair(family).ours
    prompts = [random_ids(length, seed=length) for length in PAST]
    tree = tree_of(random_ids(16, seed=5).view(2, 8), torch.tensor([PARENTS, PARENTS]))
    memory = memory_of(target)
    with torch.inference_mode():
        run_committed(target, memory, prompts, [0, 0])
        before = memory.recurrent.recurrent.clone(), memory.recurrent.conv.clone()
        logits, stash = verify(target, memory, tree)
        assert torch.equal(memory.recurrent.recurrent, before[0])
        assert torch.equal(memory.recurrent.conv, before[1])
        paths = [path_to(tree, sequence, end) for sequence, end in enumerate(ends)]
        longest = max(map(len, paths))
        nodes = torch.tensor([path + [0] * (longest - len(path)) for path in paths])
        sizes = torch.tensor([len(path) for path in paths])
        path = Path(nodes=nodes, num_nodes=sizes, emitted=torch.zeros_like(nodes))
        commit(stash, path, recurrent=memory.recurrent, key_values=memory.key_values)

        alone = memory_of(target)
        run_committed(target, alone, prompts, [0, 0])
        taken = [tree.tokens[sequence, path] for sequence, path in enumerate(paths)]
        expected = run_committed(target, alone, taken, list(PAST)).split([len(part) for part in taken])
        for sequence, rows in enumerate(paths):
            torch.testing.assert_close(logits[sequence, rows], expected[sequence], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(memory.recurrent.recurrent, alone.recurrent.recurrent, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(memory.recurrent.conv, alone.recurrent.conv, rtol=1e-4, atol=1e-5)
        past = [begin + len(rows) for begin, rows in zip(PAST, paths, strict=True)]
        follow = [random_ids(2, seed=8), random_ids(2, seed=9)]
        after, wanted = (run_committed(target, held, follow, past) for held in (memory, alone))
        torch.testing.assert_close(after, wanted, rtol=1e-4, atol=1e-4)
