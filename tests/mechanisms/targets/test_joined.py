"""Parts of one step give what steps of their own give."""

from __future__ import annotations

import pytest
import torch

from lossguard_mechanisms.targets.joined import JoinedMixing
from lossguard_mechanisms.targets.rows import rows_of
from lossguard_mechanisms.targets.stateful import StatefulMixing
from tests.mechanisms.targets.tiny import FAMILIES, logits_of, memory_for, pair, random_ids, run_step


@pytest.mark.parametrize("family", FAMILIES)
def test_decode_beside_a_chunk(family: str) -> None:
    target = pair(family, dtype=torch.float64).ours
    joined, apart = memory_for(target, num_slots=4), memory_for(target, num_slots=4)
    for memory in (joined, apart):
        run_step(target, memory, {slot: (random_ids(3 + slot, seed=slot), 0) for slot in (0, 3)})
    token, chunk = random_ids(2, seed=8), random_ids(19, seed=9)
    singles, chunks = rows_of([3, 0], [6, 3], [1, 1]), rows_of([1], [0], [19])
    parts = [
        (num_rows, StatefulMixing(rows, recurrent=joined.recurrent, key_values=joined.key_values))
        for num_rows, rows in ((2, singles), (19, chunks))
    ]
    positions = torch.cat((singles.positions, chunks.positions))
    found = logits_of(target, torch.cat((token, chunk)), positions, JoinedMixing(parts))
    first = run_step(target, apart, {3: (token[:1], 6), 0: (token[1:], 3)})
    second = run_step(target, apart, {1: (chunk, 0)})
    expected = torch.cat((first[3], first[0], second[1]))
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-11)
    torch.testing.assert_close(joined.recurrent.recurrent, apart.recurrent.recurrent, rtol=0, atol=1e-11)
    torch.testing.assert_close(joined.key_values.keys, apart.key_values.keys, rtol=0, atol=1e-11)
