"""A campaign: swap pair after swap pair, each alone on the host, resumed at the first run that is incomplete."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

from lossguard.devices.leases import LeaseBook
from lossguard.errors import EngineError, MeasurementError, StorageError
from lossguard.seals import is_sealed, seal
from lossguard.stages.timing.design import RunPlan
from lossguard.stages.timing.pair_times import MeasuredPair, measured_pair
from lossguard.stages.timing.run_log import RunRecord, read_run
from lossguard.stages.timing.runner import ArmPool, Probe, RunSettings, measure_run, run_path

Note = Callable[[str], None]
Stop = Callable[[Sequence[MeasuredPair]], str | None]
"""Told all pairs so far; returns why the campaign may end early, or None."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Hooks:
    """What a campaign tells its caller while it runs."""

    note: Note
    progress: Callable[[int], None]  # replies received
    stop: Stop = lambda _pairs: None


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What a campaign has: complete pairs, and the reasons why there are not more."""

    pairs: tuple[MeasuredPair, ...]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    stopped: str | None = None  # why it ended before its last pair, by plan


@dataclass(frozen=True, slots=True, kw_only=True)
class Circumstances:
    """Where and how patiently a campaign runs."""

    book: LeaseBook
    purpose: str
    wait_seconds: float
    metric: str = "latency"


def run_campaign(settings: RunSettings, runs: Sequence[RunPlan], around: Circumstances, hooks: Hooks) -> Measured:
    """Measure what is missing. Failures of systems, devices and disk end it and are reported, never raised.

    Ctrl-C passes after the arms have been ended. A run whose telemetry spoke against it is kept, reported, and measured
    again by the next call.
    """
    pairs: list[MeasuredPair] = []
    problems: list[str] = []
    notes: list[str] = []
    stopped: str | None = None
    with ExitStack() as stack:
        try:
            pool = _open_pool(settings, around, hooks, stack)
            for _number, group in groupby(runs, key=lambda run: run.pair):
                records = _measure_pair(pool, list(group), around, hooks)
                notes += [text for record in records for text in (record.end or {}).get("notes", ())]
                found, reasons = measured_pair(
                    records, _names(settings), metric=around.metric, origin=str(settings.folder)
                )
                problems += reasons
                pairs += [found] if found else []
                stopped = hooks.stop(pairs) if not problems else None
                if stopped:
                    break
        except (EngineError, MeasurementError, StorageError) as error:
            problems.append(f"{error.code}: {error.found}")
    return Measured(pairs=tuple(pairs), problems=tuple(problems), notes=tuple(dict.fromkeys(notes)), stopped=stopped)


def probe(settings: RunSettings, around: Circumstances, hooks: Hooks) -> Probe:
    """Launch both arms once, before anything is planned. Raises EngineError, MeasurementError."""
    with ExitStack() as stack:
        return _open_pool(settings, around, hooks, stack).probe()


def _open_pool(settings: RunSettings, around: Circumstances, hooks: Hooks, stack: ExitStack) -> ArmPool:
    lease = stack.enter_context(around.book.hold(settings.devices, around.purpose, around.wait_seconds, hooks.note))
    pool = ArmPool(settings, lease.add_process)
    stack.callback(pool.close)
    return pool


def _measure_pair(pool: ArmPool, runs: Sequence[RunPlan], around: Circumstances, hooks: Hooks) -> list[RunRecord]:
    """The pair's two runs; those that are complete and sound on disk are not measured again."""
    folder = pool.settings.folder
    missing = [run for run in runs if not _is_sound(folder, run)]
    for run in runs:
        if run not in missing:
            hooks.progress(2 * len(pool.settings.requests))
    if missing:
        with around.book.exclusive_pair(around.wait_seconds, hooks.note):
            pool.settle()
            for run in missing:
                measure_run(pool, run, hooks.progress)
                seal(folder, [run_path(folder, run)])
    records = [read_run(run_path(folder, run)) for run in runs]
    return [record for record in records if record is not None]


def _is_sound(folder: Path, run: RunPlan) -> bool:
    """Complete, undisturbed, and as it was written. Raises IntegrityError LG0617 for a run that was edited."""
    path = run_path(folder, run)
    record = read_run(path) if is_sealed(folder, path) else None
    return record is not None and record.is_complete and not record.problems


def _names(settings: RunSettings) -> list[str]:
    return [device.name for device in settings.devices]
