"""From a name, a number of nodes and a drafter's sizes to a policy that every lattice of that drafter can serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from lossguard_mechanisms.trees.beam import require_capacity, require_dynamic_capacity
from lossguard_mechanisms.trees.failures import too_deep
from lossguard_mechanisms.trees.names import BEST_FIRST, CHAIN, DDTREE, DYNAMIC, STATIC, WITHOUT_EDGES
from lossguard_mechanisms.trees.policies import BestFirstPolicy, ChainPolicy, DynamicPolicy, StaticPolicy

AnyPolicy: TypeAlias = ChainPolicy | BestFirstPolicy | DynamicPolicy | StaticPolicy
DEFAULT_NODES = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class LatticeSizes:
    """What a drafter's lattices have."""

    drafter: str
    num_depths: int
    num_candidates: int

    @property
    def has_edges(self) -> bool:
        """Whether pairs of candidates are scored."""
        return self.drafter not in WITHOUT_EDGES


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeOrder:
    """What is asked for. ``num_nodes`` are drafted ones, the anchor not counted."""

    policy: str
    num_nodes: int | None = None
    """None: ``DEFAULT_NODES``. A chain has as many as it is deep."""
    num_depths: int | None = None
    """None: all of the drafter's."""


def policy_for(order: TreeOrder, sizes: LatticeSizes, *, has_kernel: bool | None = None) -> tuple[AnyPolicy, str]:
    """(policy, why it goes by the scores that it goes by). ``has_kernel``: see ``BestFirstPolicy``.

    Raises UsageError LG1901 for more nodes than a tree holds or the lattice has paths for, LG1903 for a depth beyond
    the lattice.
    """
    depths = sizes.num_depths if order.num_depths is None else order.num_depths
    if not 0 < depths <= sizes.num_depths:
        raise too_deep(depths, sizes.num_depths)
    if order.policy == CHAIN:
        return ChainPolicy(depths), f"the drafter's own chain of {depths}"
    nodes = DEFAULT_NODES if order.num_nodes is None else order.num_nodes
    if order.policy == STATIC:
        static = StaticPolicy(nodes, num_depths=depths)
        require_capacity(nodes, num_depths=depths, num_candidates=sizes.num_candidates)
        return static, "ranks alone"
    on_edges = order.policy != DDTREE and sizes.has_edges
    if order.policy == DYNAMIC:
        dynamic = DynamicPolicy(nodes, on_edges=on_edges, num_depths=depths)
        require_dynamic_capacity(nodes, num_depths=depths, num_candidates=sizes.num_candidates)
        return dynamic, _scores(on_edges=on_edges, sizes=sizes)
    assert order.policy in (BEST_FIRST, DDTREE), "names are checked where they are read"
    best = BestFirstPolicy(nodes, on_edges=on_edges, num_depths=depths, has_kernel=has_kernel)
    require_capacity(nodes, num_depths=depths, num_candidates=sizes.num_candidates)
    if order.policy == DDTREE:
        return best, "each candidate's own probability"
    return best, _scores(on_edges=on_edges, sizes=sizes)


def _scores(*, on_edges: bool, sizes: LatticeSizes) -> str:
    if on_edges:
        return f"scores of pairs of candidates, which {sizes.drafter} gives"
    return f"each candidate's own probability, since {sizes.drafter} scores no pairs"
