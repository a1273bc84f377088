"""Timing as the gate runs it: per candidate a session, its noise, its campaign, its claim."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from types import MappingProxyType

from lossguard.baseline.noise_record import write_noise
from lossguard.config import SystemConfig
from lossguard.errors import EngineError, MeasurementError
from lossguard.records import CheckResult, Claim, Evidence, ServedOutput, Verdict
from lossguard.run_folder import read_outputs
from lossguard.stages.timing.campaign import Hooks
from lossguard.stages.timing.diverging import Diverging, diverging_outputs
from lossguard.stages.timing.judging import CHECK, SpeedVerdict
from lossguard.stages.timing.noise_stage import find_noise, make_record, measure_noise
from lossguard.stages.timing.requests import Suite, prepare_suite, timing_workspace
from lossguard.stages.timing.session import open_session
from lossguard.stages.timing.timed_candidate import TimedCandidate
from lossguard.stages.workspace import Workspace
from lossguard.timing_plan import Timing

COVERS = ("speed of whole requests on the client's clock, at the campaign's own concurrency and lengths",)
DOES_NOT_COVER = (
    "whether the replies are right (the lossless claim says that)",
    "other tokens in no more timed replies than stock against itself, or the lossless run, has",
    "work that an engine leaves to threads or servers of its own behind its last reply",
    "other loads, lengths, devices and clocks than those of this campaign",
)


def time_systems(
    workspace: Workspace, timing: Timing, judged: Mapping[str, Diverging] = MappingProxyType({})
) -> tuple[list[Claim], Suite]:
    """A speed claim per candidate of the plan, and the suite that was served.

    ``judged``: by candidate, replies of its lossless claim in this run, where that passed.
    """
    inner = timing_workspace(workspace, timing)
    suite = prepare_suite(inner, timing)
    systems = workspace.plan.systems
    return [time_system(inner, timing, system, suite, judged.get(system.name)) for system in systems], suite


def time_system(
    workspace: Workspace, timing: Timing, system: SystemConfig, suite: Suite, judged: Diverging | None = None
) -> Claim:
    """One candidate. Failures of systems, devices and disk give INCONCLUSIVE; a wrong plan or baseline raises."""
    hooks = Hooks(note=workspace.note, progress=lambda _count: None)
    try:
        session = open_session(workspace, timing, system, suite, hooks)
    except (EngineError, MeasurementError) as error:
        return speed_claim(workspace, system, _failed(f"{error.code}: {error.found}"))
    noise = find_noise(workspace, session)
    found = TimedCandidate(workspace=workspace, session=session, noise=noise, judged=judged).verdict()
    return speed_claim(workspace, system, found)


def judged_replies(
    workspace: Workspace, timing: Timing, claims: Sequence[Claim], stock_outputs: Sequence[ServedOutput]
) -> dict[str, Diverging]:
    """By candidate whose lossless claim passed: in how many of the replies that were judged it differs from stock."""
    found = {}
    for claim in claims:
        if claim.verdict.is_pass and claim.candidate is not None:
            outputs, _notes = read_outputs(workspace.folder.system(claim.candidate) / "outputs.jsonl")
            found[claim.candidate] = diverging_outputs(stock_outputs, list(outputs.values()), timing.tokens)
    return found


def not_judged_again(workspace: Workspace, system: SystemConfig) -> Claim:
    """INCONCLUSIVE: a verdict on speed belongs to the run that measured it."""
    problem = "speed is not judged again from saved replies; the verdict is in report.json, or resume the run"
    return speed_claim(workspace, system, _failed(problem))


def record_noise_profile(workspace: Workspace, timing: Timing) -> Path:
    """Measure stock against stock and keep it as the baseline's profile.

    Raises MeasurementError LG1011 if not all of its pairs could be measured; the next call resumes.
    """
    inner = timing_workspace(workspace, timing)
    stock = workspace.plan.stock
    suite = prepare_suite(inner, timing)
    session = open_session(inner, timing, stock, suite, Hooks(note=inner.note, progress=lambda _count: None))
    measured = measure_noise(inner, session)
    if measured.problems or len(measured.pairs) < timing.noise_pairs:
        raise MeasurementError(
            f"the noise of {stock.name!r} could not be measured: {'; '.join(measured.problems)}",
            why="a profile of what is left would understate the noise that spoilt the rest",
            fix=f"remove the reason, then continue with --resume {workspace.folder.path}: sound runs are kept",
            code="LG1011",
        )
    record = make_record(
        stock.name, session.conditions, session.stock, measured.pairs, session.suite.strata, session.num_devices
    )
    return write_noise(timing.noise_root, record)


def _failed(problem: str) -> SpeedVerdict:
    check = CheckResult(check=CHECK, verdict=Verdict.INCONCLUSIVE, summary=problem, notes=(problem,))
    return SpeedVerdict(check=check, gain=None, gain_lower_bound=None, gain_upper_bound=None)


def speed_claim(workspace: Workspace, system: SystemConfig, found: SpeedVerdict) -> Claim:
    """The claim ``NAME/speed``."""
    evidence = Evidence(
        checks=(found.check,),
        covers=COVERS,
        does_not_cover=DOES_NOT_COVER,
        gain=found.gain,
        gain_lower_bound=found.gain_lower_bound,
        gain_upper_bound=found.gain_upper_bound,
    )
    return Claim(
        id=f"{system.name}/speed",
        candidate=system.name,
        baseline=workspace.plan.stock.name,
        verdict=found.check.verdict,
        evidence=evidence,
    )
