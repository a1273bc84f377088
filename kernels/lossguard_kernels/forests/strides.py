"""Whether a tensor lies as kernels read it."""

from __future__ import annotations

from torch import Tensor


def heads_lie_together(rows: Tensor) -> bool:
    """Of [rows, heads, channels]: a row's heads one after the other; rows may lie apart.

    The stride over a single head says nothing, whatever torch reports.
    """
    return rows.stride(2) == 1 and (rows.shape[1] == 1 or rows.stride(1) == rows.shape[2])
