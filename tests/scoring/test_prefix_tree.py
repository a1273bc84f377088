"""The prefix tree holds every position of every arm exactly once, behind the right inputs."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lossguard.scoring.prefix_tree import MIN_SHARED_TOKENS, Node, Reply, build_roots, cut_reply, nested_groups

token = st.integers(0, 2)
replies_of = st.lists(st.lists(token, max_size=40), min_size=1, max_size=5)


def replies_from(lists: list[list[int]]) -> list[Reply]:
    slot = 0
    replies = []
    for ids in lists:
        replies.append(Reply(ids=np.asarray(ids, dtype=np.int64), first_slot=slot))
        slot += len(ids)
    return replies


def visit(node: Node, before: list[int], found: dict[int, tuple[list[int], int]]) -> int:
    """Record (inputs up to the state, served id) per slot; returns the number of input tokens run."""
    inputs = [*before, *node.tokens.tolist()]
    for slot, row in zip(node.slots.tolist(), node.slot_rows.tolist(), strict=True):
        assert slot not in found, "a slot is scored twice"
        end = len(before) + int(node.output_index[row]) + 1
        found[slot] = (inputs[:end], int(node.served[row]))
    return len(node.tokens) + sum(visit(child, inputs, found) for child in node.children)


@given(replies_of, st.booleans())
def test_every_token_is_scored_once_from_its_own_prefix(lists: list[list[int]], share: bool) -> None:  # noqa: FBT001
    prompt = [7, 8]
    found: dict[int, tuple[list[int], int]] = {}
    replies = replies_from(lists)
    for root in build_roots(prompt, replies, 0, share=share):
        visit(root, [], found)
    for reply in replies:
        for position, served in enumerate(reply.ids.tolist()):
            expected = ([*prompt, *reply.ids[:position].tolist()], served)
            assert found.pop(reply.first_slot + position) == expected
    assert not found


@given(replies_of)
def test_no_node_scores_a_pair_twice(lists: list[list[int]]) -> None:
    nodes = build_roots([7], replies_from(lists), 0, share=True)
    while nodes:
        node = nodes.pop()
        pairs = list(zip(node.output_index.tolist(), node.served.tolist(), strict=True))
        assert len(set(pairs)) == len(pairs)
        nodes += node.children


def test_two_arms_share_prompt_and_common_reply() -> None:
    (root,) = build_roots([7, 8], replies_from([[1, 2, 3, 4], [1, 2, 5, 6]]), 0, share=True)
    assert root.tokens.tolist() == [7, 8, 1, 2]
    assert root.served.tolist() == [1, 2, 3, 5]
    assert [child.tokens.tolist() for child in root.children] == [[3], [5]]


def test_a_reply_that_ends_parts_nothing() -> None:
    (root,) = build_roots([7], replies_from([[1, 2], [1, 2, 3]]), 0, share=True)
    assert not root.children
    assert root.tokens.tolist() == [7, 1, 2]


def test_long_second_forks_are_shared_and_short_ones_are_not() -> None:
    for length, expected in ((MIN_SHARED_TOKENS - 1, 3), (MIN_SHARED_TOKENS, 2)):
        shared = [1] * length
        (root,) = build_roots([7], replies_from([[0, 0, 0], [*shared, 0, 0], [*shared, 2, 2]]), 0, share=True)
        assert len(root.children) == expected


def test_without_sharing_every_arm_has_its_own_root() -> None:
    roots = build_roots([7], replies_from([[1, 2], [1, 2], []]), 0, share=False)
    assert [root.tokens.tolist() for root in roots] == [[7, 1], [7, 1]]


def test_nested_replies_never_fork() -> None:
    replies = replies_from([[1, 2, 3, 4], [], [1, 2, 9], [1, 8, 3], [1], [1, 2, 3, 5], [1, 8, 7]])
    groups = nested_groups(replies)
    together = sorted(sorted(reply.ids.tolist() for reply in group) for group in groups)
    assert together == [[[], [1], [1, 2, 3, 4], [1, 2, 3, 5], [1, 2, 9]], [[1, 8, 3], [1, 8, 7]]]
    for group in groups:
        (root,) = build_roots([7], group, 0, share=True)
        assert not root.children
        assert sorted(root.slots.tolist()) == sorted(
            reply.first_slot + at for reply in group for at in range(len(reply.ids))
        )


def test_replies_are_cut_after_an_id_without_embedding() -> None:
    assert cut_reply([1, 2, 9, 3], 0, 5).ids.tolist() == [1, 2, 9]
    assert cut_reply([-1, 2], 0, 5).ids.tolist() == [-1]
    assert cut_reply([1, 4], 0, 5).ids.tolist() == [1, 4]
