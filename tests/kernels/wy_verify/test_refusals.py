"""Input that the kernels do not take is refused before a launch."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
import torch

from lossguard.errors import UsageError
from lossguard_kernels.forests.forest import Forest, forest_of, forest_of_batch
from lossguard_kernels.wy_verify.operation import commit, defer, verify
from lossguard_kernels.wy_verify.rows import DeltaRows, empty_pending, empty_stash
from tests.kernels.wy_verify.delta_rows import Sizes, delta_rows
from tests.kernels.wy_verify.test_operation import random_states, shape_of

SIZES = Sizes()


def test_more_nodes_than_a_word_has_bits() -> None:
    with pytest.raises(UsageError, match="65 nodes") as caught:
        forest_of([list(range(-1, 64))])
    assert caught.value.code == "LG1901"
    with pytest.raises(UsageError) as caught:
        forest_of_batch(torch.zeros(2, 65, dtype=torch.int64))
    assert caught.value.code == "LG1901"
    forest = replace(forest_of([[-1] * 3]), most_nodes=65)
    with pytest.raises(UsageError) as caught:
        verify(delta_rows(3, SIZES), forest, random_states(1, SIZES), torch.zeros(1, dtype=torch.int64))
    assert caught.value.code == "LG1901"


@pytest.mark.parametrize("parents", [[-1, 2, 0], [0], [-1, 1], [-1, -2]])
def test_an_order_that_is_not_topological(parents: list[int]) -> None:
    with pytest.raises(UsageError, match="parent") as caught:
        forest_of([[-1], parents])
    assert caught.value.code == "LG1902"


BREACHES: dict[str, Callable[[DeltaRows], DeltaRows]] = {
    "key heads": lambda rows: replace(rows, key=rows.key[:, :, :16], query=rows.query[:, :, :16]),
    "channels": lambda rows: replace(rows, value=rows.value[:, :, :12]),
    "rows": lambda rows: replace(rows, value=rows.value[:2]),
    "rates": lambda rows: replace(rows, beta=rows.beta[:, :1]),
    "dtype": lambda rows: replace(rows, key=rows.key.bfloat16()),
    "doubles": lambda rows: replace(rows, key=rows.key.double(), query=rows.query.double(), value=rows.value.double()),
    "decays": lambda rows: replace(rows, log_decay=rows.log_decay.bfloat16()),
    "strides": lambda rows: replace(rows, value=rows.value.transpose(1, 2).contiguous().transpose(1, 2)),
}


@pytest.mark.parametrize("breach", BREACHES)
def test_tensors_that_do_not_fit(breach: str) -> None:
    rows = BREACHES[breach](delta_rows(3, SIZES))
    with pytest.raises(UsageError) as caught:
        verify(rows, forest_of([[-1, 0, 0]]), random_states(1, SIZES), torch.zeros(1, dtype=torch.int64))
    assert caught.value.code == "LG1911"


def test_states_and_slots_that_do_not_fit() -> None:
    rows, forest, slots = delta_rows(3, SIZES), forest_of([[-1, 0, 0]]), torch.zeros(1, dtype=torch.int64)
    states = random_states(2, SIZES)
    for wrong in (states.double(), states.transpose(2, 3), states[:, :1]):
        refused(rows, forest, wrong, slots)
    refused(rows, forest, states, torch.zeros(2, dtype=torch.int64))
    stash = empty_stash(shape_of(rows, 2), "cpu")
    with pytest.raises(UsageError) as caught:
        commit(stash, forest, slots, states[None], slots)
    assert caught.value.code == "LG1911"
    with pytest.raises(UsageError) as caught:
        verify(rows, forest, states, slots, stash=stash)
    assert caught.value.code == "LG1911"


def refused(rows: DeltaRows, forest: Forest, states: torch.Tensor, slots: torch.Tensor) -> None:
    with pytest.raises(UsageError) as caught:
        verify(rows, forest, states, slots)
    assert caught.value.code == "LG1911"


def test_deferred_rows_need_room() -> None:
    shape = shape_of(delta_rows(3, SIZES), 1)
    pending, slots = empty_pending(shape, 1, 16, "cpu"), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(UsageError, match="up to 17") as caught:
        defer(empty_stash(shape, "cpu"), forest_of([[-1, 0, 0]]), slots, pending, slots, most_rows=17)
    assert caught.value.code == "LG1912"
    with pytest.raises(UsageError) as caught:
        empty_pending(shape, 1, 65, "cpu")
    assert caught.value.code == "LG1901"


def test_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    rows, forest, slots = delta_rows(3, SIZES), forest_of([[-1, 0, 0]]), torch.zeros(1, dtype=torch.int64)
    with pytest.raises(UsageError, match="triton") as caught:
        verify(rows, forest, random_states(1, SIZES), slots)
    assert caught.value.code == "LG1913"
    assert verify(rows, forest, random_states(1, SIZES), slots, backend="torch")[0].shape == rows.value.shape
