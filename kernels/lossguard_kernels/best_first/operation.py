"""The best paths through a drafter's candidates as trees, grown in one launch that asks nothing of the device."""

from __future__ import annotations

import importlib.util
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_kernels.forests.failures import wrong_tensors
from lossguard_kernels.forests.interpreter import require_triton

MOST_CANDIDATES, MOST_DRAFTS, MOST_DEPTHS = 16, 63, 255
_WIDTH = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """B trees of N nodes, parents before children and layer by layer; node 0 is the anchor."""

    tokens: Tensor  # [B, N] int64
    parents: Tensor  # [B, N] int64, -1 for the anchor
    depths: Tensor  # [B, N] int64
    ancestors: Tensor  # [B, N, N] bool: node j is node i or an ancestor of it


def grow(first: Tensor, steps: Tensor, ids: Tensor, anchors: Tensor, num_drafts: int) -> Growth:
    """The ``num_drafts`` paths of highest log q, with the anchors as roots: trees of ``num_drafts`` + 1 nodes.

    ``first`` [B, K] float32 is log q of the candidates of depth 1, ``steps`` [B, D - 1, K, K] from each candidate of a
    depth to each of the next, none above 0; ``ids`` [B, D, K] int64 their tokens; ``anchors`` [B] int64. Any strides.
    Nodes are chosen by log q, then depth, then place in their layer, as a heap takes them, and stand layer by layer.
    Raises UsageError LG1911 for operands that do not fit, or more than 63 drafts or 16 candidates, and LG1913 without
    Triton.
    """
    growth = empty_growth(anchors, num_drafts)
    grow_into(growth, first, steps, ids, anchors)
    return growth


def runs_on(ids: Tensor) -> bool:
    """Whether ``grow`` takes candidates [B, D, K] like these on their device; it needs CUDA and Triton."""
    fits = ids.shape[2] <= MOST_CANDIDATES and ids.shape[1] <= MOST_DEPTHS
    return fits and ids.is_cuda and importlib.util.find_spec("triton") is not None


def empty_growth(anchors: Tensor, num_drafts: int) -> Growth:
    """Room for the trees of ``anchors`` [B]."""
    shape = (anchors.shape[0], num_drafts + 1)
    tokens, parents, depths = (torch.empty(shape, dtype=torch.int64, device=anchors.device) for _ in range(3))
    ancestors = torch.empty((*shape, num_drafts + 1), dtype=torch.bool, device=anchors.device)
    return Growth(tokens=tokens, parents=parents, depths=depths, ancestors=ancestors)


def grow_into(growth: Growth, first: Tensor, steps: Tensor, ids: Tensor, anchors: Tensor) -> None:
    """``grow`` into what ``empty_growth`` gave; every element is written."""
    num_drafts = growth.tokens.shape[1] - 1
    _require(first, steps, ids, anchors, num_drafts)
    require_triton()
    from lossguard_kernels.best_first.growth_kernel import grow_kernel

    batch, num_depths, num_candidates = ids.shape
    grow_kernel[(batch,)](
        first, steps, ids, anchors, growth.tokens, growth.parents, growth.depths, growth.ancestors.view(torch.int8),
        *first.stride(), *steps.stride(), *ids.stride(), *anchors.stride(), DEPTHS=num_depths,
        CANDIDATES=num_candidates, WIDTH=_WIDTH, DRAFTS=num_drafts, ROWS=1 << num_drafts.bit_length(), num_warps=1,
    )  # fmt: skip


def _require(first: Tensor, steps: Tensor, ids: Tensor, anchors: Tensor, num_drafts: int) -> None:
    if ids.dim() != 3 or anchors.shape != ids.shape[:1]:
        raise wrong_tensors(f"candidates {list(ids.shape)} and anchors {list(anchors.shape)}")
    batch, depths, candidates = ids.shape
    if first.shape != (batch, candidates) or steps.shape != (batch, depths - 1, candidates, candidates):
        raise wrong_tensors(f"scores {list(first.shape)} and {list(steps.shape)} of candidates {list(ids.shape)}")
    dtypes = (first.dtype, steps.dtype, ids.dtype, anchors.dtype)
    if dtypes != (torch.float32, torch.float32, torch.int64, torch.int64):
        raise wrong_tensors(f"scores and candidates of {', '.join(map(str, dtypes))}")
    if candidates > MOST_CANDIDATES or not 0 < num_drafts <= MOST_DRAFTS or depths > MOST_DEPTHS:
        raise wrong_tensors(f"{num_drafts} drafts among {depths} x {candidates} candidates")
    if num_drafts > sum(candidates**depth for depth in range(1, depths + 1)):
        raise wrong_tensors(f"{num_drafts} drafts where {depths} x {candidates} candidates have fewer paths")
