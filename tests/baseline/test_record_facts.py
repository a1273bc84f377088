"""What a record says of itself: the hash of stock's fingerprint, and the power that the run itself will state."""

from __future__ import annotations

import pytest

from lossguard.baseline.record import load_record
from lossguard.errors import BaselineError
from lossguard.gate import record_facts, run_gate
from tests.baseline.conftest import CLAIM, Recorded, recorded_plan
from tests.gate.conftest import Stack
from tests.gate.toy import ToyEngine, handle


def test_the_power_is_the_one_that_the_run_states(stack: Stack, recorded: Recorded) -> None:
    facts = record_facts(recorded.path)
    candidate = handle("candidate", ToyEngine(stack.target, batch_size=5))
    claim = run_gate(recorded_plan(stack, recorded.path, candidate)).claims[0]
    assert facts.detectable_excess_points == pytest.approx(claim.evidence.power["detectable_excess_points"])
    assert 0 < facts.detectable_excess_points < 100


def test_the_stock_is_named_by_its_fingerprint(recorded: Recorded) -> None:
    facts, record = record_facts(recorded.path), load_record(recorded.path)
    assert facts.claim == record.claim == CLAIM
    assert facts.created == record.created
    assert facts.fingerprint_sha256 == record.fingerprint.sha256


def test_a_record_that_is_not_there(recorded: Recorded) -> None:
    with pytest.raises(BaselineError, match="LG0701"):
        record_facts(recorded.path.with_name("nowhere.safetensors"))
