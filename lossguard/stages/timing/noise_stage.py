"""Where the A/A noise of a campaign comes from: the baseline's profile if it fits, else measured now."""

from __future__ import annotations

import datetime
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lossguard.baseline.noise_record import (
    NoiseRecord,
    noise_path,
    read_noise,
    require_comparable_noise,
    unreadable_noise,
)
from lossguard.fingerprint import Fingerprint
from lossguard.stages.estimate import in_words
from lossguard.stages.timing.campaign import Hooks, Measured, run_campaign
from lossguard.stages.timing.campaign_key import require_same_key
from lossguard.stages.timing.design import plan_runs, sequence
from lossguard.stages.timing.diverging import Diverging, diverging_of
from lossguard.stages.timing.pair_times import MeasuredPair, to_pair_times
from lossguard.stages.timing.session import Session
from lossguard.stages.workspace import Workspace
from lossguard.timing.base import NoiseProfile
from lossguard.timing.noise import describe_noise, noise_profile

NOISE_FOLDER = "noise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Noise:
    """A profile, and where it comes from. No profile: why not."""

    profile: NoiseProfile | None
    source: str
    problems: tuple[str, ...] = ()
    diverging: Diverging | None = None  # timed replies in which stock differs from itself


def stored_noise(
    root: Path, baseline: str, conditions: Mapping[str, Any], here: Fingerprint, num_devices: int
) -> Noise | None:
    """The baseline's profile of these conditions; None if it has none.

    Raises BaselineError LG1006 (measured elsewhere) or LG1007 (damaged).
    """
    path = noise_path(root, baseline, conditions)
    if not path.is_file():
        return None
    record = read_noise(path)
    require_comparable_noise(record, here, path)
    profile = profile_of_record(record, path, num_devices)
    return Noise(profile=profile, source=str(path), diverging=diverging_of(map(MeasuredPair.from_json, record.pairs)))


def profile_of_record(record: NoiseRecord, path: Path, num_devices: int) -> NoiseProfile:
    """The statistics of a stored profile, computed again from its pairs. Raises BaselineError LG1007."""
    try:
        pairs = [MeasuredPair.from_json(pair) for pair in record.pairs]
    except (KeyError, TypeError, ValueError) as error:
        raise unreadable_noise(path, f"a pair of it is malformed: {error}") from error
    return _profile(pairs, record.strata, num_devices, record.conditions)


def _profile(
    pairs: Sequence[MeasuredPair], strata: Sequence[str], num_devices: int, conditions: Mapping[str, Any]
) -> NoiseProfile:
    profile = noise_profile(to_pair_times(pairs, strata, num_devices, metric=conditions["metric"]))
    return replace(profile, keeps_launches=conditions["relaunch"] == "reset")


def make_record(
    baseline: str,
    conditions: Mapping[str, Any],
    here: Fingerprint,
    pairs: Sequence[MeasuredPair],
    strata: Sequence[str],
    num_devices: int,
) -> NoiseRecord:
    """The record of an A/A campaign."""
    profile = _profile(pairs, strata, num_devices, conditions)
    return NoiseRecord(
        baseline=baseline,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        conditions=dict(conditions),
        fingerprint=here,
        strata=tuple(strata),
        pairs=tuple(pair.to_json() for pair in pairs),
        summary=dict(describe_noise(profile)),
    )


def find_noise(workspace: Workspace, session: Session) -> Noise:
    """The stored profile, else one that is measured now, in the run folder. Raises BaselineError LG1006, LG1007."""
    root, baseline = session.timing.noise_root, workspace.plan.stock.name
    found = stored_noise(root, baseline, session.conditions, session.stock, session.num_devices)
    if found is not None:
        return found
    workspace.note(
        f"noise: {baseline} has no profile of this kind in {root}; measuring {session.timing.noise_pairs} A/A pairs "
        f"first (lossguard noise record keeps one)"
    )
    measured = measure_noise(workspace, session)
    source = f"measured in this run: {len(measured.pairs)} A/A pairs"
    if measured.problems or not measured.pairs:
        problems = tuple(f"noise profile: {problem}" for problem in measured.problems)
        return Noise(profile=None, source=source, problems=problems or ("no A/A pair was measured",))
    profile = _profile(measured.pairs, session.suite.strata, session.num_devices, session.conditions)
    return Noise(profile=profile, source=source, diverging=diverging_of(measured.pairs))


def measure_noise(workspace: Workspace, session: Session) -> Measured:
    """The A/A campaign, through the very same pipeline."""
    folder = workspace.folder.path / NOISE_FOLDER
    require_same_key(folder, _noise_key(workspace, session), "noise")
    timing = session.timing
    runs = plan_runs(
        timing.noise_pairs,
        num_devices=session.num_devices,
        order=timing.order,
        seed=workspace.plan.effective_seed,
    )
    workspace.note(f"noise: {describe_plan(session, timing.noise_pairs)}, stock's places {sequence(runs)}")
    with workspace.listener.stage("noise (stock against stock)", session.num_replies(len(runs)), "replies") as progress:
        hooks = Hooks(note=workspace.note, progress=progress)
        return run_campaign(session.against_itself(folder), runs, session.around, hooks)


def _noise_key(workspace: Workspace, session: Session) -> dict[str, Any]:
    """What the runs of an interrupted A/A campaign must have been measured for: stock, machine and conditions."""
    key = {
        "stock": dict(session.stock.identity),
        "conditions": dict(session.conditions),
        "order": session.timing.order,
        "seed": workspace.plan.effective_seed,
    }
    plain: dict[str, Any] = json.loads(json.dumps(key, default=str))
    return plain


def describe_plan(session: Session, num_pairs: int) -> str:
    """Sizes, devices and the expected cost of a campaign, in words."""
    timing = session.timing
    devices = " and ".join(device.name for device in session.settings.devices)
    sizes = f"{timing.requests} requests x {timing.tokens} tokens"
    launches = 2 * session.num_devices if timing.relaunch == "reset" else 4 * num_pairs
    return (
        f"{num_pairs} swap pairs of {sizes} on {devices}, {launches} launches of arms, "
        f"at most about {in_words(session.cost_seconds(num_pairs))}"
    )
