"""The blockwise selection gives the values that a selection over the whole row gives."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lossguard.scoring.head_columns import TOP_BLOCK, block_top


@given(
    num_rows=st.integers(1, 5),
    width=st.integers(1, 20 * TOP_BLOCK + 7),
    count=st.integers(1, 6),
    levels=st.sampled_from([3, 40, 10**6]),
    seed=st.integers(0, 2**16),
)
def test_same_values_as_topk(num_rows: int, width: int, count: int, levels: int, seed: int) -> None:
    count = min(count, width)
    generator = torch.Generator().manual_seed(seed)
    logits = torch.randint(levels, (num_rows, width), generator=generator).float()
    values, columns = block_top(logits, count)
    assert torch.equal(values, logits.topk(count, dim=-1).values)
    assert torch.equal(logits.gather(1, columns), values)
    assert all(len(set(row)) == count for row in columns.tolist()), "no column is named twice"


@pytest.mark.parametrize("place", [0, 5 * TOP_BLOCK + 3, 12 * TOP_BLOCK + 1])
def test_nan_comes_first(place: int) -> None:
    logits = torch.zeros(1, 12 * TOP_BLOCK + 2)
    logits[0, place] = float("nan")
    values, columns = block_top(logits, 3)
    assert values[0, 0].isnan()
    assert int(columns[0, 0]) == place
