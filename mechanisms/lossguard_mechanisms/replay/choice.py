"""From names and budgets to policies for one recording."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lossguard_mechanisms.replay.failures import no_edges, unknown_policy
from lossguard_mechanisms.replay.policies import (
    BEST_FIRST_EDGES,
    CHAIN,
    DYNAMIC,
    DYNAMIC_EDGES,
    ON_EDGES,
    ORACLE,
    POLICIES,
    STATIC,
    BestFirst,
    Chain,
    Dynamic,
    Oracle,
    Policy,
    Static,
)
from lossguard_mechanisms.replay.recording import Lattices

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

    Raises UsageError LG1607 for an unknown name and LG1608 for edges that were asked for and are not there.
    """
    for name in names:
        if name not in POLICIES:
            raise unknown_policy(name, POLICIES)
    reasons: list[str] = []
    wanted = [name for name in POLICIES if name in names or not names]
    on_edges = [name for name in wanted if name in ON_EDGES]
    if lattices.edges is None and on_edges:
        if names:
            raise no_edges(on_edges[0], drafter)
        wanted = [name for name in wanted if name not in ON_EDGES]
        reasons.append(f"{', '.join(on_edges)} left out: no edges of {drafter} are recorded")
    elif on_edges and lattices.num_edge_candidates < lattices.num_candidates:
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
    if name in (DYNAMIC, DYNAMIC_EDGES):
        on_edges = name == DYNAMIC_EDGES
        return [Dynamic(num_nodes=budget, num_depths=depths, on_edges=on_edges) for budget in budgets]
    on_edges = name == BEST_FIRST_EDGES
    return [BestFirst(num_nodes=budget, num_depths=depths, on_edges=on_edges) for budget in budgets]
