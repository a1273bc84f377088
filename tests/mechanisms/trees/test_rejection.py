"""Rejection rules emit the target's law: chi-square tests on many sequences at once, and of rules that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.stats import chi2
from torch import Tensor

from lossguard_mechanisms.trees.matching import SampleAndMatch
from lossguard_mechanisms.trees.rejection import (
    Laws,
    MultiRoundRejection,
    RecursiveRejection,
    draw_independently,
    draw_without_replacement,
    residual,
)
from lossguard_mechanisms.trees.tree import Path, Tree, tree_of

BATCH, VOCAB = 40_000, 6
ALPHA = 1e-6  # of each test: hypothesis looks at many
PARENTS = (-1, 0, 0, 0, 1, 1, 2)
"""Three children of the anchor; the first has two more, the second one."""


class Draws:
    """Numbers of one generator, other ones at every call."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)

    def __call__(self, _step: int, _lane: int) -> Tensor:
        return self.of(BATCH)

    def of(self, *shape: int) -> Tensor:
        return torch.rand(shape, generator=self._generator, dtype=torch.float64).clamp(min=1e-12)


def dirichlet(rng: np.random.Generator, concentration: float, *shape: int) -> Tensor:
    return torch.from_numpy(rng.dirichlet(np.full(VOCAB, concentration), size=shape)) + 0.0


def drawn_tree(draft: Tensor, draws: Draws, *, replaces: bool) -> Tree:
    """``draft`` [V + 1, V]: what follows each token, the last row the anchor."""
    anchors = torch.full((BATCH, 1), VOCAB)
    tokens = [anchors]
    for parent, count in ((0, 3), (1, 2), (2, 1)):
        law = draft[torch.cat(tokens, dim=1)[:, parent]]
        if replaces:
            tokens.append(draw_independently(law, draws.of(BATCH, count)))
        else:
            tokens.append(draw_without_replacement(law, draws.of(BATCH, VOCAB), count))
    return tree_of(torch.cat(tokens, dim=1), torch.tensor(PARENTS).expand(BATCH, -1))


def is_drawn_from(counts: Tensor, law: Tensor) -> bool:
    """Chi-square over tokens that the law expects five times at least, the others pooled."""
    total, expected = float(counts.sum()), law * counts.sum()
    large = expected >= 5
    seen = [*counts[large].tolist(), float(counts[~large].sum())]
    wanted = [*expected[large].tolist(), float(expected[~large].sum())]
    if wanted[-1] < 5:
        seen, wanted = seen[:-1], wanted[:-1]
    if total < 200 or len(wanted) < 2:
        return True
    statistic = sum((a - b) ** 2 / b for a, b in zip(seen, wanted, strict=True))
    return float(chi2.sf(statistic, len(wanted) - 1)) > ALPHA


def first_two_are_exact(path: Path, target: Tensor) -> bool:
    """``target`` [V + 1, V] after each token. The second token exists where the first was accepted."""
    first = path.emitted[:, 0]
    if not is_drawn_from(torch.bincount(first, minlength=VOCAB).double(), target[VOCAB]):
        return False
    went_on = path.num_nodes > 1
    second = path.emitted[:, 1]
    return all(
        is_drawn_from(torch.bincount(second[went_on & (first == token)], minlength=VOCAB).double(), target[token])
        for token in range(VOCAB)
    )


RULES = [pytest.param(MultiRoundRejection(), id="multi-round"), pytest.param(RecursiveRejection(), id="recursive")]


@pytest.mark.parametrize("rule", RULES)
@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), concentration=st.sampled_from([0.2, 0.7, 3.0]))
def test_drawn_children_are_accepted_exactly(rule: MultiRoundRejection, seed: int, concentration: float) -> None:
    rng, draws = np.random.default_rng(seed), Draws(seed)
    target, draft = (dirichlet(rng, concentration, VOCAB + 1) for _ in range(2))
    tree = drawn_tree(draft, draws, replaces=rule.replaces)
    path = rule.walk(tree, Laws(target=target[tree.tokens], draft=draft[tree.tokens]), draws)
    assert first_two_are_exact(path, target)
    assert bool(((path.num_nodes >= 1) & (path.num_nodes <= 3)).all())
    on_path = tree.tokens.gather(1, path.nodes)
    went_on = path.num_nodes > 1
    assert torch.equal(on_path[went_on, 1], path.emitted[went_on, 0]), "a node of the path carries the token before it"


@settings(max_examples=6, deadline=None)
@given(seed=st.integers(0, 10**6), concentration=st.sampled_from([0.2, 0.7, 3.0]))
def test_chosen_children_are_matched_exactly(seed: int, concentration: float) -> None:
    """Sample-and-match on the best children of any drafter."""
    rng, draws = np.random.default_rng(seed), Draws(seed)
    target, draft = (dirichlet(rng, concentration, VOCAB + 1) for _ in range(2))
    tree = best_tree(draft)
    laws = target[tree.tokens]
    chosen = draw_independently(laws.flatten(0, 1), draws.of(BATCH * tree.num_nodes, 1)).view(BATCH, -1)
    assert first_two_are_exact(SampleAndMatch().walk(tree, chosen), target)


def best_tree(draft: Tensor) -> Tree:
    """The best children in the shape of ``PARENTS``, the same in every sequence."""
    tokens = [VOCAB, *draft[VOCAB].topk(3).indices.tolist()]
    tokens += draft[tokens[1]].topk(2).indices.tolist() + draft[tokens[2]].topk(1).indices.tolist()
    return tree_of(torch.tensor(tokens).expand(BATCH, -1), torch.tensor(PARENTS).expand(BATCH, -1))


@pytest.mark.parametrize("rule", RULES)
def test_rejection_on_chosen_children_is_seen_to_be_wrong(rule: MultiRoundRejection) -> None:
    """The rule that the adversarial suite plants (ratio-of-best): this test can fail."""
    rng, draws = np.random.default_rng(3), Draws(3)
    target, draft = (dirichlet(rng, 0.7, VOCAB + 1) for _ in range(2))
    tree = best_tree(draft)
    path = rule.walk(tree, Laws(target=target[tree.tokens], draft=draft[tree.tokens]), draws)
    assert not first_two_are_exact(path, target)


def test_the_rule_for_other_draws_is_seen_to_be_wrong() -> None:
    rng, draws = np.random.default_rng(5), Draws(5)
    target, draft = (dirichlet(rng, 0.7, VOCAB + 1) for _ in range(2))
    tree = drawn_tree(draft, draws, replaces=False)
    path = MultiRoundRejection().walk(tree, Laws(target=target[tree.tokens], draft=draft[tree.tokens]), draws)
    assert not first_two_are_exact(path, target)


def test_a_drafter_that_agrees_is_always_accepted() -> None:
    rng, draws = np.random.default_rng(1), Draws(1)
    target = dirichlet(rng, 0.7, VOCAB + 1)
    for rule in (MultiRoundRejection(), RecursiveRejection()):
        tree = drawn_tree(target, draws, replaces=rule.replaces)
        path = rule.walk(tree, Laws(target=target[tree.tokens], draft=target[tree.tokens]), draws)
        assert bool((path.num_nodes == 3).all())
        assert bool((path.nodes == torch.tensor([0, 1, 4])).all())


def test_more_children_than_the_draft_has_tokens() -> None:
    """A draft of two tokens gives three children: the third has probability 0 and is never accepted."""
    draws, rng = Draws(2), np.random.default_rng(2)
    target = dirichlet(rng, 1.0, VOCAB + 1)
    draft = torch.zeros(VOCAB + 1, VOCAB, dtype=torch.float64)
    draft[:, 0], draft[:, 1] = 0.9, 0.1
    tree = drawn_tree(draft, draws, replaces=False)
    path = RecursiveRejection().walk(tree, Laws(target=target[tree.tokens], draft=draft[tree.tokens]), draws)
    assert first_two_are_exact(path, target)
    assert not bool((path.nodes == 3).any())


@given(st.integers(0, 10**6))
def test_a_residual_is_a_distribution(seed: int) -> None:
    rng = np.random.default_rng(seed)
    target, draft = (dirichlet(rng, 0.3, 5) for _ in range(2))
    left = residual(target, draft)
    assert torch.allclose(left.sum(dim=-1), torch.ones(5, dtype=torch.float64))
    assert torch.equal(residual(target, target), target)


def test_draws_have_the_law_they_are_drawn_from() -> None:
    law: Any = torch.tensor([[0.5, 0.3, 0.2]]).expand(BATCH, -1)
    draws = Draws(4)
    once = draw_independently(law, draws.of(BATCH, 2))
    assert is_drawn_from(torch.bincount(once[:, 1], minlength=3).double(), law[0])
    twice = draw_without_replacement(law, draws.of(BATCH, 3), 2)
    assert bool((twice[:, 0] != twice[:, 1]).all())
    assert is_drawn_from(torch.bincount(twice[:, 0], minlength=3).double(), law[0])
    after_best = twice[twice[:, 0] == 0, 1]
    assert is_drawn_from(torch.bincount(after_best, minlength=3).double(), torch.tensor([0.0, 0.6, 0.4]))
