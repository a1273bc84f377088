"""From names and budgets to policies for one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lossguard_mechanisms.replay.failures import no_edges, unknown_policy
from lossguard_mechanisms.replay.policies import (
    ORACLE,
    POLICIES,
    BestFirst,
    Chain,
    Dynamic,
    Oracle,
    Policy,
    Static,
)
from lossguard_mechanisms.replay.recording import Lattices
from lossguard_mechanisms.trees.names import BEST_FIRST, BY_SCORES, CHAIN, DDTREE, DYNAMIC, STATIC, WITHOUT_EDGES

ORACLE_DEPTHS = (8, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class ChosenPolicies:
    """Policies for one recording, and why any of them differ from what was asked."""

    policies: tuple[Policy, ...]
    reasons: tuple[str, ...]


def choose_policies(
    names: Sequence[str], node_budgets: Sequence[int], lattices: Lattices, drafter: str
) -> ChosenPolicies:
    """Policies by name for a recording; no name means all that it allows.

    Raises UsageError LG1607 for an unknown name and LG1608 for a policy on edges that the drafter has and that are not
    recorded.
    """
    for name in names:
        if name not in POLICIES:
            raise unknown_policy(name, POLICIES)
    reasons: list[str] = []
    wanted = [name for name in POLICIES if name in names or not names]
    by_scores = [name for name in wanted if name in BY_SCORES]
    if lattices.edges is None and by_scores and drafter in WITHOUT_EDGES:
        reasons.append(f"{drafter} scores no pairs of candidates: {', '.join(by_scores)} on each one's own probability")
    elif lattices.edges is None and by_scores:
        if names:
            raise no_edges(by_scores[0], drafter)
        wanted = [name for name in wanted if name not in BY_SCORES]
        reasons.append(f"{', '.join(by_scores)} left out: no edges of {drafter} are recorded")
    elif by_scores and lattices.num_edge_candidates < lattices.num_candidates:
        reasons.append(f"edges are recorded for {lattices.num_edge_candidates} of {lattices.num_candidates} candidates")
    if ORACLE in wanted and lattices.num_depths < max(ORACLE_DEPTHS):
        reasons.append(f"the oracle looks {lattices.num_depths} tokens ahead: more are not recorded")
    chosen = [policy for name in wanted for policy in _of_name(name, sorted(set(node_budgets)), lattices)]
    return ChosenPolicies(policies=tuple(chosen), reasons=tuple(reasons))


def _of_name(name: str, budgets: Sequence[int], lattices: Lattices) -> list[Policy]:
    depths = lattices.num_depths
    if name == CHAIN:
        return [Chain(num_depths=depths)]
    if name == ORACLE:
        return [Oracle(num_depths=ahead) for ahead in sorted({min(ahead, depths) for ahead in ORACLE_DEPTHS})]
    if name == STATIC:
        candidates = lattices.num_candidates
        return [Static(num_nodes=budget, num_depths=depths, num_candidates=candidates) for budget in budgets]
    on_edges = lattices.edges is not None
    if name == DYNAMIC:
        return [Dynamic(num_nodes=budget, num_depths=depths, on_edges=on_edges) for budget in budgets]
    assert name in (BEST_FIRST, DDTREE), "the other policies are above"
    on_edges = on_edges and name == BEST_FIRST
    return [BestFirst(num_nodes=budget, num_depths=depths, on_edges=on_edges, name=name) for budget in budgets]
