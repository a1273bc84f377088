"""Acceptance by rejection, for children that were drawn from the drafter's distribution: lossless, and only for those.

At a node with target law p and children x_1, x_2, .. drawn in this order from q, child x is accepted with probability
min(1, r(x) / q(x)), r = p at first and after each refusal the normalised positive part of r - q. If none is accepted
the token is drawn from what r is then. Children drawn independently: the same q each time (multi-round, SpecInfer,
arXiv 2305.09781). Children drawn without replacement: q loses each refused token and is normalised again (recursive,
RSD, arXiv 2402.14160; Sequoia, arXiv 2402.12374). Children that were *chosen* (best-first, a static tree) have another
law than q: for them only matching is exact.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_mechanisms.trees.tree import Path, Tree

Numbers = Callable[[int, int], Tensor]
"""From a step of the walk and a lane (0 for the last draw, else the node that is asked about) to numbers in (0, 1) [B],
independent of each other, of the draws of the children, and of everything that was committed before."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Laws:
    """Probabilities after each node: the target's, and those that its children were drawn from."""

    target: Tensor  # [B, N, V]
    draft: Tensor  # [B, N, V], of nodes with children

    def at(self, nodes: Tensor) -> tuple[Tensor, Tensor]:
        """Both [B, V] after one node of each sequence, float64."""
        rows = torch.arange(len(nodes), device=nodes.device)
        return self.target[rows, nodes].double(), self.draft[rows, nodes].double()


class MultiRoundRejection:
    """For children drawn independently; equal siblings may occur."""

    replaces = True

    def walk(self, tree: Tree, laws: Laws, numbers: Numbers) -> Path:
        """Accepted nodes of each tree and the tokens that they give, up to the deepest path that may occur."""
        return _walk(tree, laws, numbers, replaces=self.replaces)


class RecursiveRejection(MultiRoundRejection):
    """For children drawn without replacement, in the order of their nodes."""

    replaces = False


def draw_independently(law: Tensor, numbers: Tensor) -> Tensor:
    """[B, M] tokens drawn with replacement from ``law`` [B, V], one for each of ``numbers`` [B, M] in (0, 1)."""
    cumulative = law.double().cumsum(dim=-1)
    drawn = torch.searchsorted(cumulative, numbers.double() * cumulative[:, -1:], right=True)
    return drawn.clamp(max=law.shape[1] - 1)


def draw_without_replacement(law: Tensor, numbers: Tensor, count: int) -> Tensor:
    """[B, count] different tokens in the order of their draw: the largest of log q plus Gumbel noise.

    ``numbers`` [B, V] in (0, 1) give the noise. Where q has fewer tokens than ``count`` the last ones have probability
    0, and are never accepted. Source: Kool, van Hoof, Welling 2019, "Stochastic beams and where to find them".
    """
    noise = -(-numbers.double().log()).log()
    return (law.double().log() + noise).topk(count, dim=-1).indices


def residual(target: Tensor, draft: Tensor) -> Tensor:
    """Normalised positive part of ``target`` - ``draft`` [B, V]; ``target`` where nothing is left (never reached)."""
    left = (target - draft).clamp(min=0.0)
    total = left.sum(dim=-1, keepdim=True)
    return torch.where(total > 0, left / torch.where(total > 0, total, 1.0), target)


def _walk(tree: Tree, laws: Laws, numbers: Numbers, *, replaces: bool) -> Path:
    current = torch.zeros(len(tree.tokens), dtype=torch.int64, device=tree.tokens.device)
    walks = torch.ones_like(current, dtype=torch.bool)
    nodes: list[Tensor] = []
    emitted: list[Tensor] = []
    count = torch.zeros_like(current)
    for step in range(int(tree.depths.max()) + 1):
        accepted, left = _accept_child(tree, laws, (current, walks), numbers, step=step, replaces=replaces)
        last = draw_independently(left, numbers(step, 0)[:, None])[:, 0]
        nodes.append(current)
        count = count + walks
        emitted.append(torch.where(accepted > 0, tree.tokens.gather(1, accepted[:, None])[:, 0], last))
        walks = walks & (accepted > 0)
        current = torch.where(walks, accepted, current)
    return Path(nodes=torch.stack(nodes, dim=1), num_nodes=count, emitted=torch.stack(emitted, dim=1))


def _accept_child(
    tree: Tree, laws: Laws, place: tuple[Tensor, Tensor], numbers: Numbers, *, step: int, replaces: bool
) -> tuple[Tensor, Tensor]:
    """The accepted child of each sequence's node [B], 0 for none, and the law that is left if there is none [B, V]."""
    current, walks = place
    target, draft = laws.at(current)
    accepted = torch.zeros_like(current)
    for node in range(1, tree.num_nodes):
        token = tree.tokens[:, node, None]
        asked = walks & (accepted == 0) & (tree.parents[:, node] == current)
        wanted, offered = target.gather(1, token)[:, 0], draft.gather(1, token)[:, 0]
        takes = asked & (offered > 0) & (numbers(step, node) * offered < wanted)
        accepted = torch.where(takes, node, accepted)
        refused = (asked & (offered > 0) & ~takes)[:, None]
        target = torch.where(refused, residual(target, draft), target)
        if not replaces:
            rest = draft.scatter(1, token, 0.0)
            total = rest.sum(dim=-1, keepdim=True)
            draft = torch.where(refused, rest / torch.where(total > 0, total, 1.0), draft)
    return accepted, target
