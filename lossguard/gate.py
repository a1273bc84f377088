"""The one entry that every front uses: a plan in, claims with verdicts and evidence out."""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import lossguard
from lossguard.baseline.atomic import require_writable
from lossguard.baseline.parameters import claim_parameters, record_name, require_name
from lossguard.baseline.problems import recorded_already
from lossguard.baseline.record import write_record
from lossguard.checks.base import CheckInput
from lossguard.checks.power import PowerInput, estimate_power
from lossguard.config import SystemConfig
from lossguard.gate_result import GateResult
from lossguard.listener import Listener, SilentListener
from lossguard.plan import Plan
from lossguard.plan_file import plan_from_json, plan_to_json, require_same_plan
from lossguard.records import Claim, Request, ServedOutput
from lossguard.report.json_report import RunFacts, build_report, claim_to_json
from lossguard.run_folder import RunFolder, only_process, reading
from lossguard.stages.ahead import Ahead, serving_ahead
from lossguard.stages.arms import audited_arms, scored_arms, served
from lossguard.stages.calibration import Calibration, run_calibration
from lossguard.stages.doctor import Diagnosis, doctor
from lossguard.stages.early_scoring import early_scoring
from lossguard.stages.engine_opening import open_engine
from lossguard.stages.estimate import estimate_cost
from lossguard.stages.facts import baseline_facts, run_fingerprints, with_scorer
from lossguard.stages.foreground import serve_foreground
from lossguard.stages.judging import Judgement, judge
from lossguard.stages.loaded_facts import with_loaded_facts
from lossguard.stages.recheck import Recheck, recheck
from lossguard.stages.record_facts import RecordFacts, record_facts
from lossguard.stages.recorded_baseline import materialise, read_recorded, require_usable
from lossguard.stages.recording import record_stock
from lossguard.stages.score_file import FileScores, score_file
from lossguard.stages.scorer_comparison import ScorerComparison, compare_scorers
from lossguard.stages.scorer_comparison import in_words as comparison_in_words
from lossguard.stages.stock_guard import guarded_thresholds
from lossguard.stages.stop_texts import with_stop_texts
from lossguard.stages.timing.stage import judged_replies, not_judged_again, record_noise_profile, time_systems
from lossguard.stages.waves import require_exercises
from lossguard.stages.workspace import RunRequests, Workspace, prepare_requests
from lossguard.timing_plan import Timing, bad_timing

__all__ = [
    "Diagnosis",
    "FileScores",
    "GateResult",
    "Recheck",
    "RecordFacts",
    "ScorerComparison",
    "check_record",
    "compare_scorers",
    "comparison_in_words",
    "doctor",
    "load_plan",
    "open_engine",
    "recheck",
    "record_baseline",
    "record_facts",
    "record_from_run",
    "record_noise",
    "rejudge",
    "run_gate",
    "run_timing",
    "score_file",
    "serve_foreground",
]


def run_gate(plan: Plan, *, listener: Listener | None = None, command: Sequence[str] = ()) -> GateResult:
    """Judge every candidate of the plan against its baseline.

    Order: requests, calibration on stock alone, thresholds frozen on disk, stock's test replies, then candidate by
    candidate: serve, score beside stock, audit, judge. Everything is written to the run folder as it is made; the
    same plan with ``resume`` continues. With ``record``, all of stock's part comes from that file. Raises
    LossguardError (usage, baseline, engine, scorer, storage); what was measured stays on disk.
    """
    plan.require_candidates()
    recorded = read_recorded(plan)
    with _open_run(plan, listener) as workspace:
        if recorded is not None:
            materialise(workspace, recorded, rules_sha256())
        with serving_ahead(workspace) as ahead:
            return _run(workspace, command, ahead)


def run_timing(plan: Plan, *, listener: Listener | None = None, command: Sequence[str] = ()) -> GateResult:
    """Judge the speed of every candidate, and nothing else: claims NAME/speed. Whether replies are right is not judged.

    Systems, devices and disks that fail give INCONCLUSIVE, and what was measured stays: the same plan with ``resume``
    continues. Raises UsageError LG1001, LG1003, LG1010, LG1012; BaselineError LG1006, LG1007; IntegrityError LG1008.
    """
    plan.require_candidates()
    timing = _timing_of(plan)
    with _open_run(plan, listener, scores=False) as workspace:
        run = {**_run_facts(workspace, command), "baseline": None}
        claims, suite = time_systems(workspace, timing)
        for claim in claims:
            workspace.listener.claim(claim_to_json(claim), run)
        timed = [request.set for request in suite.timed]
        prompts = {"sha256": suite.sha256, "sets": sorted(set(timed)), "num_clusters": len(timed), "reasons": []}
        facts = RunFacts(
            run=run,
            fingerprint={"stock": {}, "candidates": {}, "scorer": {}},
            prompts=prompts,
            thresholds={},
            integrity={"prompts_sha256": suite.sha256, "rules_sha256": rules_sha256("lossguard.timing")},
            producer_version=lossguard.__version__,
        )
        return _finish(workspace, tuple(claims), facts)


def record_noise(plan: Plan, *, listener: Listener | None = None) -> Path:
    """Time the plan's baseline against itself and keep the noise profile under ``plan.timing.noise_root``.

    A run folder is made as for ``run_timing``, and ``resume`` continues one. Raises what ``run_timing`` raises, and
    MeasurementError LG1011 where not every pair could be measured.
    """
    stock_only = replace(plan, candidates=(), record=None)
    require_name(plan.stock.name)
    timing = _timing_of(plan)
    with _open_run(stock_only, listener, scores=False) as workspace:
        return record_noise_profile(workspace, timing)


def _timing_of(plan: Plan) -> Timing:
    if plan.timing is None:
        raise bad_timing("the plan has no timing", "give Plan(..., timing=Timing(...))")
    return plan.timing


def check_record(plan: Plan) -> None:
    """Raise BaselineError LG0701 to LG0706 if ``run_gate`` would refuse the plan's record.

    Nothing is served, scored or written, and candidates are left alone: for fronts that must know before they begin.
    """
    recorded = read_recorded(plan)
    if recorded is None:
        return
    stock_only = replace(plan, candidates=())
    workspace = Workspace(plan=stock_only, folder=RunFolder(plan.folder), listener=SilentListener())
    try:
        require_usable(workspace, recorded)
    finally:
        workspace.close()


def record_baseline(plan: Plan, *, claim: str, target: Path, listener: Listener | None = None) -> Path:
    """Serve and score the plan's baseline alone, and write it as the record of ``claim`` to ``target``, atomically.

    Candidates of the plan are left alone. A run folder is made as for ``run_gate``, and ``resume`` continues one that
    was interrupted. Raises UsageError LG0708 (names) before anything runs, StorageError LG0707 if ``target`` cannot be
    written, and what serving and scoring raise.
    """
    stock_only = replace(plan, candidates=(), record=None)
    require_name(plan.stock.name)
    record_name(claim, claim_parameters(stock_only))
    require_writable(target)
    with _open_run(stock_only, listener, scores=False) as workspace:
        return write_record(target, record_stock(workspace, claim, rules_sha256()))


def record_from_run(run_folder: Path, *, claim: str, target: Path) -> Path:
    """Write the stock of a finished run as the record of ``claim`` to ``target``; no engine and no scorer starts.

    Raises UsageError LG0708 (names) and LG0710 (the run's own stock was a record), IntegrityError LG0613 or LG0606 if
    the run is not finished and LG0617 if its files were changed, StorageError LG0707 if ``target`` cannot be written.
    """
    folder, plan = RunFolder.open(run_folder), load_plan(run_folder)
    if plan.record is not None:
        raise recorded_already(run_folder, plan.record)
    record_name(claim, claim_parameters(plan))
    require_writable(target)
    workspace = Workspace(plan=plan, folder=folder, listener=SilentListener(), is_offline=True)
    with only_process(folder), reading(folder.path / "report.json"):
        rules = str(folder.read_json("report.json")["integrity"]["rules_sha256"])
        return write_record(target, record_stock(workspace, claim, rules))


@contextmanager
def _open_run(plan: Plan, listener: Listener | None, *, scores: bool = True) -> Iterator[Workspace]:
    """The run folder of a plan, locked, with a workspace that is closed at the end.

    ``scores``: a scorer that is not there is an error now, and not after hours of serving.
    """
    folder = RunFolder.open(plan.resume) if plan.resume else RunFolder.create(plan.folder)
    with only_process(folder):
        _keep_plan(plan, folder)
        workspace = Workspace(plan=plan, folder=folder, listener=listener or SilentListener())
        try:
            if scores:
                workspace.require_scorer()
            yield workspace
        finally:
            workspace.close()


def load_plan(run_folder: Path) -> Plan:
    """The plan of an earlier run, set to resume it."""
    data = RunFolder.open(run_folder).read_json("plan.json")
    with reading(run_folder / "plan.json"):
        return plan_from_json(data, run_folder)


def rejudge(run_folder: Path, *, listener: Listener | None = None) -> GateResult:
    """Apply today's rules to the saved scores of a run; no engine and no scorer starts.

    Events that were not audited stay unaudited. The new report is ``rejudged.json``; the old one stays. Raises
    IntegrityError LG0613 if the run is not finished, UsageError LG0604 if it only recorded a baseline.
    """
    folder, plan = RunFolder.open(run_folder), load_plan(run_folder)
    plan.require_candidates()
    workspace = Workspace(plan=plan, folder=folder, listener=listener or SilentListener(), is_offline=True)
    with only_process(folder):
        return _run(workspace, ("lossguard", "rejudge", str(run_folder)))


def _keep_plan(plan: Plan, folder: RunFolder) -> None:
    if plan.resume:
        require_same_plan(folder.read_json("plan.json"), plan, folder.path)
    else:
        folder.write_json("plan.json", plan_to_json(plan))


def _run(workspace: Workspace, command: Sequence[str], ahead: Ahead | None = None) -> GateResult:
    run = _run_facts(workspace, command)
    requests = prepare_requests(workspace)
    fingerprints = run_fingerprints(workspace)
    if not workspace.is_offline:
        require_exercises(workspace)
        if ahead is not None:
            ahead.begin(requests.test)
        estimate_cost(workspace, requests)
    calibration = run_calibration(workspace, requests)
    power = _power(workspace, requests, calibration)
    workspace.listener.thresholds(_head(workspace, calibration, power))
    stock_outputs = served(workspace, workspace.plan.stock, requests.test)
    claims = []
    for system in workspace.plan.systems:
        case = Case(system=system, stock_outputs=stock_outputs, calibration=calibration, power=power)
        claims.append(_judge_system(workspace, requests.test, case))
        workspace.listener.claim(claim_to_json(claims[-1]), run)
    claims += _speed_claims(workspace, run, claims, stock_outputs)
    facts = RunFacts(
        run=run,
        fingerprint=with_loaded_facts(workspace, with_scorer(workspace, fingerprints)),
        prompts=_prompt_facts(requests),
        thresholds=calibration.thresholds.to_json(),
        integrity={"prompts_sha256": requests.sha256, "rules_sha256": rules_sha256()},
        producer_version=lossguard.__version__,
    )
    return _finish(workspace, tuple(claims), facts)


def _speed_claims(
    workspace: Workspace, run: Mapping[str, Any], lossless: Sequence[Claim], stock_outputs: Sequence[ServedOutput]
) -> list[Claim]:
    """Claims NAME/speed where the plan asks for them. They are measured, so judging again offline decides nothing."""
    timing = workspace.plan.timing
    if timing is None:
        return []
    if workspace.is_offline:
        return [not_judged_again(workspace, system) for system in workspace.plan.systems]
    if workspace.ahead is not None:
        workspace.ahead.close()  # nothing of ours runs while pairs are timed
    for system in (workspace.plan.stock, *workspace.plan.systems):
        workspace.release(system)
    claims, _suite = time_systems(workspace, timing, judged_replies(workspace, timing, lossless, stock_outputs))
    for claim in claims:
        workspace.listener.claim(claim_to_json(claim), run)
    return claims


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One candidate with all that it is judged against."""

    system: SystemConfig
    stock_outputs: Sequence[ServedOutput]
    calibration: Calibration
    power: Mapping[str, Any]


def _judge_system(workspace: Workspace, requests: Sequence[Request], case: Case) -> Claim:
    with early_scoring(workspace, case.system, requests, case.stock_outputs) as early:
        outputs = served(workspace, case.system, requests, early.heard)
        workspace.release(case.system)
        arms = scored_arms(workspace, case.system, requests, (case.stock_outputs, outputs), early)
    thresholds = guarded_thresholds(workspace, case.system, case.calibration, (requests, arms[0]))
    stock, candidate = audited_arms(workspace, requests, arms, thresholds)
    stock, candidate = with_stop_texts(workspace, requests, stock, candidate)
    given = CheckInput(
        requests=requests,
        stock=stock,
        candidate=candidate,
        thresholds=thresholds,
        calibration_requests=case.calibration.requests,
        calibration=case.calibration.stock,
        expect=case.system.expect,
        vocab_size=workspace.vocab_size,
        seed=workspace.plan.effective_seed,
        is_strict=workspace.plan.strict,
        recomposed=case.calibration.recomposed,
        exercise=case.system.exercise,
    )
    return judge(Judgement(given=given, power=case.power, decode=workspace.text_of))


def _power(workspace: Workspace, requests: RunRequests, calibration: Calibration) -> dict[str, Any]:
    """Of the rate rule; at temperature > 0 nothing, since there the sampling check says what it could see."""
    if workspace.plan.effective_temperature:
        return {}
    return estimate_power(_power_input(workspace, requests, calibration)).to_json()


def _power_input(workspace: Workspace, requests: RunRequests, calibration: Calibration) -> PowerInput:
    replies = calibration.stock.outputs
    return PowerInput(
        requests=calibration.requests,
        stock=calibration.stock,
        recomposed=calibration.recomposed,
        thresholds=calibration.thresholds,
        num_requests=len(requests.test),
        mean_tokens=sum(len(output.ids) for output in replies) / len(replies),
        seed=workspace.plan.effective_seed,
        num_clusters=len({request.cluster for request in requests.test}),
    )


def _head(workspace: Workspace, calibration: Calibration, power: Mapping[str, Any]) -> dict[str, Any]:
    plan = workspace.plan
    return {
        "version": lossguard.__version__,
        "stock": f"{plan.stock.name} ({plan.stock.engine})",
        "candidates": [system.name for system in plan.systems],
        "model": plan.config.model,
        "seed": plan.effective_seed,
        "temperature": plan.effective_temperature,
        "thresholds": calibration.thresholds.to_json(),
        "power": dict(power),
    }


def _run_facts(workspace: Workspace, command: Sequence[str]) -> dict[str, Any]:
    plan, folder = workspace.plan, workspace.folder.path
    name = "rejudged.json" if workspace.is_offline else "report.json"
    recorded = baseline_facts(workspace.folder)
    return {
        "id": folder.name,
        "started": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "seed": plan.effective_seed,
        "budget": asdict(plan.sizes),
        "temperature": plan.effective_temperature,
        "repeats": plan.repeats,
        "command": list(command),
        "folder": str(folder),
        "report_path": str(folder / name),
        "baseline": {key: value for key, value in recorded.items() if key != "fingerprint"} if recorded else None,
    }


def _prompt_facts(requests: RunRequests) -> dict[str, Any]:
    return {
        "sha256": requests.sha256,
        "sets": sorted({request.set for request in requests.test}),
        "num_clusters": len({request.cluster for request in requests.test}),
        "reasons": list(requests.reasons),
    }


def rules_sha256(package: str = "lossguard.checks") -> str:
    """Hash of the source of every rule: two verdicts with another hash were reached by other rules."""
    digest = hashlib.sha256()
    files = [entry for entry in resources.files(package).iterdir() if entry.name.endswith(".py")]
    for entry in sorted(files, key=lambda entry: entry.name):
        digest.update(entry.name.encode() + b"\0" + entry.read_bytes())
    return digest.hexdigest()


def _finish(workspace: Workspace, claims: tuple[Claim, ...], facts: RunFacts) -> GateResult:
    result = GateResult(claims=claims, report={}, run_folder=workspace.folder.path)
    report = build_report(claims, facts, result.exit_code)
    workspace.folder.write_json(Path(facts.run["report_path"]).name, report)
    return replace(result, report=report)
