"""Best-first and dynamic trees on the device: layer by layer in fixed shapes, and nothing is asked of the device.

The same nodes as ``best_first`` and ``dynamic`` (numpy) give, ties included: order by log q, then depth, then place in
the layer. Stable sorts stand for the heap.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.trees.dynamic import WIDTH
from lossguard_mechanisms.trees.failures import no_pair_scores, too_deep, too_many_nodes


@dataclass(frozen=True, slots=True, kw_only=True)
class Nodes:
    """B times M drafted nodes, layer by layer. The anchor is not one of them."""

    parents: Tensor  # [B, M] int64: node, -1 for children of the anchor
    depths: Tensor  # [B, M] int64, from 1
    ranks: Tensor  # [B, M] int64: which candidate of its depth
    scores: Tensor  # [B, M] float32: log q of the path


@dataclass(frozen=True, slots=True, kw_only=True)
class _Layer:
    scores: Tensor  # [B, W]
    parents: Tensor  # [B, W] place in the layer before
    ranks: Tensor  # [B, W]


def step_scores(lattice: Lattice, *, on_edges: bool) -> tuple[Tensor, Tensor]:
    """log q of the first candidates [B, K] and of the steps between depths [B, D - 1, K, K], all at most 0.

    Without edges a step is worth the same from every candidate. On edges it is worth the softmax of the pair scores
    over the candidates, times the share that all candidates have by themselves (as recordings keep them). Raises
    UsageError LG1904 for a lattice without edges.
    """
    own = lattice.log_probs.float()
    if not on_edges:
        batch, depths, candidates = own.shape
        return own[:, 0], own[:, 1:, None, :].expand(batch, depths - 1, candidates, candidates)
    if lattice.edges is None:
        raise no_pair_scores("on edges", "this lattice")
    mass = own.logsumexp(dim=-1, keepdim=True)[..., None].clamp(max=0.0)
    edges = lattice.edges.float().log_softmax(dim=-1) + mass
    return edges[:, 0, 0], edges[:, 1:]


def best_first(first: Tensor, steps: Tensor, num_nodes: int) -> Nodes:
    """The ``num_nodes`` most likely paths. Raises UsageError LG1901 where there are fewer."""
    require_capacity(num_nodes, num_depths=steps.shape[1] + 1, num_candidates=first.shape[1])
    ranks = _best(first, num_nodes)
    layers = [_Layer(scores=first.gather(1, ranks), parents=torch.full_like(ranks, -1), ranks=ranks)]
    for depth in range(steps.shape[1]):
        layer, num_candidates = layers[-1], steps.shape[3]
        rows = _rows(steps[:, depth], layer.ranks)
        scores = (layer.scores[:, :, None] + rows).flatten(1)
        chosen = _best(scores, num_nodes)
        layers.append(
            _Layer(
                scores=scores.gather(1, chosen),
                parents=torch.div(chosen, num_candidates, rounding_mode="floor"),
                ranks=chosen % num_candidates,
            )
        )
    return _best_of_layers(layers, num_nodes)


def dynamic(first: Tensor, steps: Tensor, num_nodes: int, *, width: int) -> Nodes:
    """EAGLE-2's tree. Raises UsageError LG1901 where so few nodes come into being."""
    require_dynamic_capacity(num_nodes, num_depths=steps.shape[1] + 1, num_candidates=first.shape[1], width=width)
    ranks = _best(first, width)
    layers = [_Layer(scores=first.gather(1, ranks), parents=torch.full_like(ranks, -1), ranks=ranks)]
    for depth in range(steps.shape[1]):
        layer = layers[-1]
        expanded = _best(layer.scores, width)
        rows = _rows(steps[:, depth], layer.ranks.gather(1, expanded))  # [B, W, K]
        kept = rows.sort(dim=-1, descending=True, stable=True).indices[..., :width]
        scores = layer.scores.gather(1, expanded)[:, :, None] + rows.gather(2, kept)
        parents = expanded[:, :, None].expand_as(kept)
        layers.append(_Layer(scores=scores.flatten(1), parents=parents.flatten(1), ranks=kept.flatten(1)))
    return _best_of_layers(layers, num_nodes)


def require_capacity(num_nodes: int, *, num_depths: int, num_candidates: int) -> None:
    """Raise UsageError LG1901 if a lattice has fewer paths than that."""
    capacity, layer = 0, 1
    for _ in range(num_depths):
        layer *= num_candidates
        capacity += layer
        if capacity >= num_nodes:
            return
    raise too_many_nodes(num_nodes, capacity, "this lattice has paths for")


def require_dynamic_capacity(num_nodes: int, *, num_depths: int, num_candidates: int, width: int = WIDTH) -> None:
    """Raise UsageError LG1901 if a dynamic tree has fewer nodes than that."""
    breadth = min(width, num_candidates)
    capacity = breadth + (num_depths - 1) * breadth * breadth
    if num_nodes > capacity:
        raise too_many_nodes(num_nodes, capacity, f"a dynamic tree {width} wide makes")


def cut_depth(lattice: Lattice, num_depths: int | None) -> Lattice:
    """The first depths only. Raises UsageError LG1903 for more than there are, or none."""
    wanted = lattice.num_depths if num_depths is None else num_depths
    if not 0 < wanted <= lattice.num_depths:
        raise too_deep(wanted, lattice.num_depths)
    return Lattice(
        ids=lattice.ids[:, :wanted],
        log_probs=lattice.log_probs[:, :wanted],
        chain=lattice.chain[:, :wanted],
        edges=None if lattice.edges is None else lattice.edges[:, :wanted],
        confidence=None if lattice.confidence is None else lattice.confidence[:, :wanted],
    )


def _rows(steps: Tensor, ranks: Tensor) -> Tensor:
    """[B, W, K] of ``steps`` [B, K, K] the rows of these candidates."""
    return steps.gather(1, ranks[:, :, None].expand(-1, -1, steps.shape[2]))


def _best(scores: Tensor, count: int) -> Tensor:
    """[B, min(count, M)] places of the largest, best first, ties by lower place."""
    return scores.sort(dim=-1, descending=True, stable=True).indices[:, :count]


def _best_of_layers(layers: Sequence[_Layer], num_nodes: int) -> Nodes:
    device = layers[0].scores.device
    widths = [layer.scores.shape[1] for layer in layers]
    starts = [sum(widths[:depth]) for depth in range(len(widths))]
    scores = torch.cat([layer.scores for layer in layers], dim=1)
    before = [0, *starts[:-1]]
    parents = torch.cat([layer.parents + start for layer, start in zip(layers, before, strict=True)], dim=1)
    depths = torch.cat([torch.full((width,), at + 1, device=device) for at, width in enumerate(widths)])
    chosen = _best(scores, num_nodes).sort(dim=1).values  # places count layer by layer
    own = torch.arange(chosen.shape[1], device=device).expand_as(chosen)
    new_place = torch.zeros_like(parents).scatter(1, chosen, own)
    depth_of = depths[chosen]
    moved = new_place.gather(1, parents.gather(1, chosen).clamp(min=0))
    return Nodes(
        parents=torch.where(depth_of == 1, -1, moved),
        depths=depth_of,
        ranks=torch.cat([layer.ranks for layer in layers], dim=1).gather(1, chosen),
        scores=scores.gather(1, chosen),
    )
