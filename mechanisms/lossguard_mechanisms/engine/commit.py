"""Commit and rollback: the only place where a verified tree changes keys, values, recurrent and convolution states.

A verification writes keys and values past the committed ones, where nothing reads them, and leaves all other states as
they were; what it learned of every node is in the stash. Rolling back is therefore doing nothing. Committing the path
0 = n_0 .. n_m of a sequence gives, with w_j = exp(G_m - G_j),

    S <- exp(G_m) S + sum over j on the path of w_j k_j u_j^T

its convolution state becomes the window of n_m without its oldest column, and the path's keys and values move together.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from lossguard_kernels.forests.forest import Forest
from lossguard_kernels.wy_verify.convolution import commit_convolution
from lossguard_kernels.wy_verify.operation import commit as commit_by_kernel
from lossguard_kernels.wy_verify.rows import Stash, StashShape, empty_stash
from lossguard_mechanisms.engine.pages import PagedKeyValues, PageLayout
from lossguard_mechanisms.engine.verification import DeltaStash, convolution_sources
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.rows import Rows
from lossguard_mechanisms.targets.stateful import RecurrentSlots, stretch_of
from lossguard_mechanisms.trees.tree import Path, Tree


@dataclass(frozen=True, slots=True, kw_only=True)
class TreeStash:
    """What a verification leaves for the commit, delta layers in order."""

    rows: Rows
    tree: Tree
    layout: PageLayout
    sources: Tensor | None  # [B, N, width] of the convolution; None without delta layers
    kept: KernelStash | None = None  # filled by kernels in place of ``deltas``
    deltas: list[DeltaStash] = field(default_factory=list)
    columns: list[Tensor] = field(default_factory=list)
    """Inputs of the convolution: each [B, width - 1 + N, C] with the past, from kernels [B * N, C] without."""


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelStash:
    """What kernels keep of all nodes of all delta layers."""

    forest: Forest
    nodes: Stash
    sources: Tensor  # [B * N, width]


def new_stash(rows: Rows, tree: Tree, layout: PageLayout, config: TargetConfig, dtype: torch.dtype) -> TreeStash:
    """An empty stash for a model in ``dtype``; kernels fill it where they also attend."""
    if config.delta is None:
        return TreeStash(rows=rows, tree=tree, layout=layout, sources=None)
    sources = convolution_sources(tree.parents, width=config.delta.conv_width)
    if not isinstance(layout.way, Forest):
        return TreeStash(rows=rows, tree=tree, layout=layout, sources=sources)
    shape = StashShape(
        layers=len(config.delta_layers),
        rows=tree.tokens.numel(),
        key_heads=config.delta.num_key_heads,
        heads=config.delta.num_value_heads,
        key_dim=config.delta.key_dim,
        value_dim=config.delta.value_dim,
        dtype=dtype,
    )
    nodes = empty_stash(shape, tree.tokens.device)
    kept = KernelStash(forest=layout.way, nodes=nodes, sources=sources.flatten(0, 1))
    return TreeStash(rows=rows, tree=tree, layout=layout, sources=sources, kept=kept)


def commit(stash: TreeStash, path: Path, *, recurrent: RecurrentSlots, key_values: PagedKeyValues) -> None:
    """Make the tokens of ``path`` part of the sequences' states. A stash can be committed once."""
    commit_key_values(stash, path, key_values)
    commit_states(stash, path, recurrent)


def commit_key_values(stash: TreeStash, path: Path, key_values: PagedKeyValues) -> None:
    """Bring the path's keys and values together; a chain's are in place already."""
    if not stash.tree.is_chain:
        key_values.move(stash.layout, path)


def commit_states(stash: TreeStash, path: Path, recurrent: RecurrentSlots) -> None:
    """Fold the path into recurrent and convolution states."""
    if stash.kept is not None:
        _commit_by_kernels(stash.kept, stash.columns, path.last, recurrent, stash.rows.slots)
    elif stash.deltas:
        last = path.last[:, None]
        _commit_recurrent(stash, path, last, recurrent)
        _commit_convolution(stash, last, recurrent)


def _commit_by_kernels(
    kept: KernelStash, columns: list[Tensor], last: Tensor, recurrent: RecurrentSlots, slots: Tensor
) -> None:
    """One launch for all states; one a layer for the convolutions, whose inputs are not copied together."""
    commit_by_kernel(kept.nodes, kept.forest, last, recurrent.recurrent, slots)
    for place, channels in enumerate(columns):
        past = recurrent.conv[place : place + 1]
        commit_convolution(channels[None], past, kept.sources, kept.forest, last, slots)


def _commit_recurrent(stash: TreeStash, path: Path, last: Tensor, recurrent: RecurrentSlots) -> None:
    keys = torch.stack([delta.keys for delta in stash.deltas])  # [layers, B, key heads, N, key_dim]
    updates = torch.stack([delta.updates for delta in stash.deltas])  # [layers, B, heads, N, value_dim]
    totals = torch.stack([delta.totals for delta in stash.deltas])  # [layers, B, heads, N]
    end = totals.gather(-1, last[None, :, None, :].expand(*totals.shape[:-1], 1))
    weights = (end - totals).masked_fill(~_on_path(path, stash.tree.num_nodes)[None, :, None], float("-inf")).exp()
    groups = updates.shape[2] // keys.shape[2]
    weighted = keys.repeat_interleave(groups, 2) * weights[..., None]
    stretch = stretch_of(stash.rows.slots)
    if stretch is not None:
        for states, decay, key, update in zip(
            recurrent.recurrent, end.exp()[..., None], weighted, updates, strict=True
        ):
            states[stretch].mul_(decay).add_(key.transpose(-1, -2) @ update)  # rounded as in the form below
        return
    state = recurrent.recurrent.index_select(1, stash.rows.slots)
    state = end.exp()[..., None] * state + weighted.transpose(-1, -2) @ updates
    recurrent.recurrent.index_copy_(1, stash.rows.slots, state)


def _commit_convolution(stash: TreeStash, last: Tensor, recurrent: RecurrentSlots) -> None:
    assert stash.sources is not None, "delta layers have convolutions"
    columns = torch.stack(stash.columns)  # [layers, B, width - 1 + N, C]
    width = stash.sources.shape[-1]
    window = stash.sources.gather(1, last[..., None].expand(-1, -1, width))[:, 0, 1:]  # [B, width - 1]
    index = window[None, :, :, None].expand(columns.shape[0], -1, -1, columns.shape[-1])
    after = columns.gather(2, index).transpose(2, 3)
    recurrent.conv.index_copy_(1, stash.rows.slots, after.to(recurrent.conv.dtype))


def _on_path(path: Path, num_nodes: int) -> Tensor:
    """[B, N] bool."""
    steps = torch.arange(path.nodes.shape[1], device=path.nodes.device)
    is_valid = steps < path.num_nodes[:, None]
    spare = torch.where(is_valid, path.nodes, num_nodes)  # one column more takes what lies past the end
    marks = torch.zeros(path.nodes.shape[0], num_nodes + 1, dtype=torch.bool, device=path.nodes.device)
    return marks.scatter(1, spare, value=True)[:, :num_nodes]
