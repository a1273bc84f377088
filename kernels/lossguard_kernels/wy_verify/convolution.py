"""The convolution before a delta layer for every node of a forest, and the commit of one path a request."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from lossguard_kernels.forests.failures import wrong_tensors
from lossguard_kernels.forests.forest import Forest
from lossguard_kernels.forests.interpreter import require_triton

_BLOCK = 256


def sources_of(parents: Sequence[Sequence[int]], width: int, device: torch.device | str = "cpu") -> Tensor:
    """The ancestor table [rows, width] int64 of a forest: the column of every tap of every node, oldest first.

    Columns below width - 1 are the committed ones, oldest first; column width - 1 + j is node j of the same tree.
    """
    table = []
    for tree in parents:
        for node in range(len(tree)):
            taps, at, committed = [], node, width - 2
            for _ in range(width):
                if at >= 0:
                    taps.append(width - 1 + at)
                    at = tree[at]
                else:
                    taps.append(committed)
                    committed -= 1
            table.append(taps[::-1])
    return torch.tensor(table, dtype=torch.int64, device=device).view(-1, width)


def convolve(channels: Tensor, weight: Tensor, past: Tensor, sources: Tensor, forest: Forest, slots: Tensor) -> Tensor:
    """SiLU of the convolution of every node along its own path: [rows, C] as ``channels``, whose rows may lie apart.

    ``weight`` [C, width], ``past`` [slots, C, width - 1] of one layer, which stays. Raises UsageError LG1911, LG1913.
    """
    _require(channels, weight, past, sources)
    require_triton()
    from lossguard_kernels.wy_verify.convolution_kernel import convolve_kernel

    num, width = weight.shape
    output = torch.empty_like(channels, memory_format=torch.contiguous_format)
    convolve_kernel[(forest.num_trees, forest.most_nodes, -(-num // _BLOCK))](
        channels, weight, past, forest.firsts, forest.counts, slots, sources, output, channels.stride(0), NUM=num,
        WIDTH=width, TAPS=_taps(width), BLOCK=_BLOCK,
    )  # fmt: skip
    return output


def commit_convolution(
    channels: Tensor, past: Tensor, sources: Tensor, forest: Forest, last: Tensor, slots: Tensor
) -> None:
    """Move on the past [layers, slots, C, width - 1] of all layers along each request's path: one launch.

    ``channels`` [layers, rows, C], whose rows may lie apart, are the convolution's inputs; see ``operation`` for
    ``last``.
    Raises UsageError LG1911, LG1913.
    """
    layers, num_rows, num = channels.shape
    if past.dim() != 4 or past.shape[0] != layers or past.shape[2] != num or not past.is_contiguous():
        raise wrong_tensors(f"a past {list(past.shape)} for channels {list(channels.shape)}")
    if sources.shape != (num_rows, past.shape[3] + 1) or channels.stride(2) != 1:
        raise wrong_tensors(f"an ancestor table {list(sources.shape)} for {num_rows} rows")
    require_triton()
    from lossguard_kernels.wy_verify.convolution_kernel import commit_convolution_kernel

    width = sources.shape[1]
    commit_convolution_kernel[(layers * forest.num_trees, -(-num // _BLOCK))](
        channels, past, forest.firsts, last, slots, sources, forest.num_trees, past.shape[1], channels.stride(0),
        channels.stride(1), NUM=num, WIDTH=width, TAPS=_taps(width), BLOCK=_BLOCK,
    )  # fmt: skip


def _require(channels: Tensor, weight: Tensor, past: Tensor, sources: Tensor) -> None:
    num, width = weight.shape
    if channels.shape[1] != num or past.shape[1:] != (num, width - 1) or not past.is_contiguous():
        raise wrong_tensors(f"channels {list(channels.shape)}, weight {list(weight.shape)}, past {list(past.shape)}")
    if sources.shape != (channels.shape[0], width) or channels.stride(1) != 1:
        raise wrong_tensors(f"an ancestor table {list(sources.shape)} for channels {list(channels.shape)}")


def _taps(width: int) -> int:
    return 1 << (width - 1).bit_length()
