"""The gate on W12 and on weights that are nearly right: three verdicts on the committed hybrid."""

from __future__ import annotations

import pytest
import torch

from benchmarks.w12_detection import ROOT, altered, judge
from lossguard.gate_result import GateResult
from lossguard.records import Verdict
from lossguard.report.terminal import render_report
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.q_view import q_weight
from tests.mechanisms.weights.w12.toy_weights import gaussian

FAULTS = {"w12": Verdict.PASS, "q": Verdict.FAIL, "sign:1e-4": Verdict.FAIL}


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> GateResult:
    """One run of the gate: W12, the 8-bit plane served as if exact, and one flipped sign in 10,000 weights."""
    torch.set_num_threads(1)
    return judge(ROOT / "fixtures/hybrid-target", list(FAULTS), "205x24x40", tmp_path_factory.mktemp("detection"))[0]


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS)
def test_the_verdict(fault: str, result: GateResult) -> None:
    claim = result.claim(f"{fault.replace(':', '-')}/lossless")
    assert claim.verdict is FAULTS[fault], render_report(result.report)


@pytest.mark.parametrize(
    ("fault", "least", "most"), [("sign:0.1", 250, 370), ("ulp:0.1", 250, 370), ("noise:1e-9", 0, 0)]
)
def test_a_fault_changes_as_many_weights_as_it_says(fault: str, least: int, most: int) -> None:
    weight = gaussian(48, 64)
    changed = altered(weight, fault, torch.Generator().manual_seed(0))
    assert changed.dtype == weight.dtype
    assert least <= int((changed != weight).sum()) <= most
    assert bool(((changed.abs() - weight.abs()).abs() <= weight.abs() / 64).all())


def test_the_q_view_is_served_in_bf16() -> None:
    weight = gaussian(32, 48)
    changed = altered(weight, "q", torch.Generator())
    assert torch.equal(changed.float(), q_weight(encode(weight)))
