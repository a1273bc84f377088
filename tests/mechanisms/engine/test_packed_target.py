"""The CPU's layout against ``Target`` itself: the same weights, roundings aside."""

from __future__ import annotations

import pytest
import torch

from lossguard_mechanisms.engine.packed_target import PackedTarget
from lossguard_mechanisms.targets.rows import rows_of
from lossguard_mechanisms.targets.stateful import StatefulMixing
from tests.mechanisms.targets.tiny import FAMILIES, logits_of, memory_for, pair, random_ids

needs_onednn = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this torch has no oneDNN")


@needs_onednn
@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("head", ["own", "tied"])
def test_packed_logits_are_as_near_to_float32_as_the_targets_own(family: str, head: str) -> None:
    tied = head == "tied"
    exact = pair(family, tied=tied, dtype=torch.bfloat16).ours
    wide = pair(family, tied=tied).ours
    wide.load_state_dict({name: value.float() for name, value in exact.state_dict().items()})
    ids = random_ids(24, seed=3)
    rows = rows_of([0, 1], [0, 0], [11, 13])

    def run(model: object, dtype: torch.dtype) -> torch.Tensor:
        memory = memory_for(wide if dtype == torch.float32 else exact, num_slots=2)
        mixing = StatefulMixing(rows, recurrent=memory.recurrent, key_values=memory.key_values)
        return logits_of(model, ids, rows.positions, mixing).float()  # type: ignore[arg-type]

    reference = run(wide, torch.float32)
    own, packed = run(exact, torch.bfloat16), run(PackedTarget(exact), torch.bfloat16)
    assert float((packed - reference).norm()) <= 1.2 * float((own - reference).norm())
