"""A gate whose verdict is the candidate's name: for tests of everything around a verdict. Imports no numpy."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

from lossguard.config import Config
from lossguard.errors import BaselineError, EngineError
from lossguard.gate_result import GateResult
from lossguard.listener import Listener
from lossguard.plan import Plan, SystemHandle
from lossguard.records import CheckResult, Claim, Evidence, Verdict

VERDICTS = {"good": Verdict.PASS, "candidate": Verdict.PASS, "bad": Verdict.FAIL, "unclear": Verdict.INCONCLUSIVE}
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
    functions = (check_record, open_engine, record_baseline, record_facts, run_gate, run_timing)
    vars(module).update({function.__name__: function for function in functions})
    sys.modules["lossguard.gate"] = module


def run_gate(plan: Plan, *, listener: Listener, command: Sequence[str] = ()) -> GateResult:
    """One claim with the verdict that the candidate is called after."""
    (candidate,) = plan.systems
    with listener.stage(f"serve {candidate.name}", 2, "requests") as advance:
        advance(2)
    words = [candidate.name, "by", plan.record.name if plan.record else "live", plan.sizes.name]
    _note(" ".join(["serve", *words, *([f"x{plan.repeats}"] if plan.repeats > 1 else [])]))
    if candidate.name == "dead":
        raise EngineError("the engine died", why="it was told to", fix="nothing", code="LG0608")
    if candidate.name == "foreign":
        raise BaselineError("stock here is another", why="it was told to", fix="nothing", code="LG0705")
    verdict = VERDICTS[candidate.name]
    check = CheckResult(check="rate", verdict=verdict, summary="made up")
    power = {"detectable_excess_points": 0.46, "pass_given_lossless_fraction": 0.99}
    evidence = Evidence(checks=(check,), power=power, examples=(EXAMPLE,), does_not_cover=("everything",))
    claim = Claim(
        id=f"{candidate.name}/lossless",
        candidate=candidate.name,
        baseline=plan.stock.name,
        verdict=verdict,
        evidence=evidence,
    )
    return GateResult(claims=(claim,), report={"run": {"report_path": "run/report.json"}}, run_folder=Path("run"))


def run_timing(plan: Plan, *, listener: Listener, command: Sequence[str] = ()) -> GateResult:
    """As ``run_gate``; nobody here is nine times as fast, and nobody half as slow."""
    assert plan.timing is not None, "a speed claim comes with a timing plan"
    _note(f"time {plan.timing.rule} {plan.timing.faster_than} {plan.timing.not_slower} {plan.timing.metric}")
    (candidate,) = plan.systems
    verdict = Verdict.FAIL if plan.timing.faster_than == 9.0 else VERDICTS[candidate.name]
    verdict = Verdict.PASS if plan.timing.not_slower == 0.5 else verdict
    check = CheckResult(check="speed", verdict=verdict, summary="made up", evidence={"rule": plan.timing.rule})
    claim = Claim(
        id=f"{candidate.name}/speed",
        candidate=candidate.name,
        baseline=plan.stock.name,
        verdict=verdict,
        evidence=Evidence(checks=(check,), does_not_cover=("everything",), gain=0.5),
    )
    return GateResult(claims=(claim,), report={"run": {"report_path": "run/report.json"}}, run_folder=Path("run"))


def record_baseline(plan: Plan, *, claim: str, target: Path, listener: Listener) -> Path:
    """A small record that fits the plan."""
    from lossguard.baseline.parameters import claim_parameters
    from lossguard.baseline.record import write_record
    from tests.baseline.samples import record

    listener.message(f"recording {claim}")
    _note(f"record {claim}")
    return write_record(target, record(claim, plan.stock.name, parameters=claim_parameters(plan)))


def check_record(plan: Plan) -> None:
    """Any record is usable, unless the folder says that stock has changed since."""
    if Path("stock-has-changed").exists():
        raise BaselineError("stock here is another", why="it was told to", fix="nothing", code="LG0705")
    assert plan.record is not None, "there is nothing to check"


def record_facts(path: Path) -> RecordFacts:
    """What a record says about itself, with a power that nobody computed."""
    from lossguard.baseline.record import load_record

    record = load_record(path)
    return RecordFacts(
        created=record.created, fingerprint_sha256=record.fingerprint.sha256, detectable_excess_points=0.46
    )


@dataclass(frozen=True)
class RecordFacts:
    """As the gate's, as far as the header looks."""

    created: str
    fingerprint_sha256: str
    detectable_excess_points: float


@dataclass
class FakeEngine:
    """Says when it is started and closed."""

    name: str

    def __post_init__(self) -> None:
        _note(f"open {self.name}")

    def close(self) -> None:
        """Give nothing back, and say so."""
        _note(f"close {self.name}")


def open_engine(config: Config, system: str | SystemHandle) -> FakeEngine:
    """An engine of the system; names are checked as by the real gate."""
    return FakeEngine(config.system(system).name if isinstance(system, str) else system.config.name)


def _note(line: str) -> None:
    with SERVED.open("a", encoding="utf-8") as file:
        file.write(line + "\n")
