"""A gate whose verdict is the candidate's name: for tests of everything around a verdict. Imports no numpy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from lossguard.errors import BaselineError, EngineError
from lossguard.gate_result import GateResult
from lossguard.plan import Plan
from lossguard.records import CheckResult, Claim, Evidence, Verdict

VERDICTS = {"good": Verdict.PASS, "bad": Verdict.FAIL, "unclear": Verdict.INCONCLUSIVE}
SERVED = Path("served.txt")
EXAMPLE = {
    "request_id": "p0007",
    "position": 31,
    "served_id": 7,
    "best_id": 11,
    "gap_nats": 4.1,
    "served_text": " the",
    "best_text": " of",
}


def install() -> None:
    """Put this gate in the place of the real one, which must not have been imported."""
    assert "lossguard.gate" not in sys.modules, "the real gate is there already"
    module = ModuleType("lossguard.gate")
    vars(module).update(run_gate=run_gate, run_timing=run_timing, record_baseline=record_baseline)
    sys.modules["lossguard.gate"] = module


def run_gate(plan: Plan, *, command: Sequence[str] = ()) -> GateResult:
    """One claim with the verdict that the candidate is called after."""
    (candidate,) = plan.systems
    _note(f"serve {candidate.name} by {plan.record.name if plan.record else 'live'} {plan.sizes.name}")
    if candidate.name == "dead":
        raise EngineError("the engine died", why="it was told to", fix="nothing", code="LG0608")
    if candidate.name == "foreign":
        raise BaselineError("stock here is another", why="it was told to", fix="nothing", code="LG0705")
    verdict = VERDICTS[candidate.name]
    check = CheckResult(check="rate", verdict=verdict, summary="made up")
    evidence = Evidence(checks=(check,), examples=(EXAMPLE,), does_not_cover=("everything",))
    claim = Claim(
        id=f"{candidate.name}/lossless",
        candidate=candidate.name,
        baseline=plan.stock.name,
        verdict=verdict,
        evidence=evidence,
    )
    return GateResult(claims=(claim,), report={"run": {"report_path": "run/report.json"}}, run_folder=Path("run"))


def run_timing(plan: Plan, *, command: Sequence[str] = ()) -> GateResult:
    """As ``run_gate``; nobody here is nine times as fast."""
    assert plan.timing is not None, "a speed claim comes with a timing plan"
    _note(f"time {plan.timing.rule} {plan.timing.faster_than} {plan.timing.not_slower}")
    (candidate,) = plan.systems
    verdict = Verdict.FAIL if plan.timing.faster_than == 9.0 else VERDICTS[candidate.name]
    check = CheckResult(check="speed", verdict=verdict, summary="made up", evidence={"rule": plan.timing.rule})
    claim = Claim(
        id=f"{candidate.name}/speed",
        candidate=candidate.name,
        baseline=plan.stock.name,
        verdict=verdict,
        evidence=Evidence(checks=(check,), does_not_cover=("everything",), gain=0.5),
    )
    return GateResult(claims=(claim,), report={"run": {"report_path": "run/report.json"}}, run_folder=Path("run"))


def record_baseline(plan: Plan, *, claim: str, target: Path) -> Path:
    """A small record that fits the plan."""
    from lossguard.baseline.parameters import claim_parameters
    from lossguard.baseline.record import write_record
    from tests.baseline.samples import record

    _note(f"record {claim}")
    return write_record(target, record(claim, plan.stock.name, parameters=claim_parameters(plan)))


def _note(line: str) -> None:
    with SERVED.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
