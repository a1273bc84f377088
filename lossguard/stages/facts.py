"""Fingerprints of a run: collected once, kept in the run folder, compared when the run is resumed."""

from __future__ import annotations

import json
from typing import Any

from lossguard.config import SystemConfig
from lossguard.errors import UsageError
from lossguard.fingerprint import TOLD_BY_ENGINE, Fingerprint, collect_fingerprint, comparable
from lossguard.run_folder import RunFolder, reading
from lossguard.stages.user_sources import source_facts
from lossguard.stages.workspace import Workspace

FILE = "fingerprints.json"
BASELINE_FILE = "baseline.json"
LOADED = "loaded"  # facts that the scorer knows once it has its weights


def run_fingerprints(workspace: Workspace) -> dict[str, Any]:
    """Stock's and every candidate's fingerprint, and what in each candidate's differs from stock's.

    Raises UsageError LG0614 if a run is resumed on a machine, or with versions, that are not comparable.
    """
    path = workspace.folder.path / FILE
    if workspace.is_offline:
        return _saved(workspace)
    now = _collect(workspace)
    if path.is_file():
        saved = workspace.folder.read_json(FILE)
        with reading(path):
            _require_comparable(workspace, saved, now)
            now = {**now, "scorer": saved["scorer"]}
    now = with_recorded_stock(workspace, now)
    workspace.folder.write_json(FILE, now)
    return now


def _saved(workspace: Workspace) -> dict[str, Any]:
    """What an earlier call has written. Raises IntegrityError LG0606 or LG0107 if it is damaged."""
    saved = workspace.folder.read_json(FILE)
    with reading(workspace.folder.path / FILE):
        for found in (saved["stock"], *saved["candidates"].values()):
            Fingerprint.from_json(found)
        if not isinstance(saved["scorer"], dict):
            raise TypeError("the scorer's facts are no object")
    return saved


def with_recorded_stock(workspace: Workspace, fingerprints: dict[str, Any]) -> dict[str, Any]:
    """The same with the fingerprint of the recorded stock, whose replies the run judges by, if there is a record."""
    recorded = baseline_facts(workspace.folder)
    return {**fingerprints, "stock": recorded["fingerprint"]} if recorded else fingerprints


def baseline_facts(folder: RunFolder) -> dict[str, Any] | None:
    """Which record stands in for stock in this run, and its fingerprint; None where stock ran live."""
    return folder.read_json(BASELINE_FILE) if (folder.path / BASELINE_FILE).is_file() else None


def stock_fingerprint(workspace: Workspace) -> Fingerprint:
    """Stock's fingerprint here and now."""
    return _of_system(workspace, workspace.plan.stock)


def with_scorer(workspace: Workspace, fingerprints: dict[str, Any]) -> dict[str, Any]:
    """The same with the scorer's own facts, known once it has loaded; kept in the run folder."""
    if workspace.is_offline or not workspace.has_scorer:
        return fingerprints
    scorer = json.loads(json.dumps(dict(workspace.scorer_facts())))
    before = fingerprints["scorer"]
    if before.get(LOADED) and before.get(LOADED) != scorer:
        different = sorted(
            key for key in scorer.keys() | before[LOADED].keys() if scorer.get(key) != before[LOADED].get(key)
        )
        raise _elsewhere(workspace, "the scorer", f"its {', '.join(different)} differ")
    _note_other_scorer(workspace, scorer)
    fingerprints = {**fingerprints, "scorer": {**before, LOADED: scorer}}
    workspace.folder.write_json(FILE, fingerprints)
    return fingerprints


def _note_other_scorer(workspace: Workspace, scorer: dict[str, Any]) -> None:
    """Say so where a record's thresholds were learned with another scorer; both arms are scored by the one here."""
    recorded = (baseline_facts(workspace.folder) or {}).get("scorer", {}).get(LOADED)
    if recorded is None:
        return
    different = [
        f"{key}: recorded {recorded.get(key)!r}, here {scorer.get(key)!r}"
        for key in sorted(recorded.keys() | scorer.keys())
        if recorded.get(key) != scorer.get(key) and not key.endswith(("_reason", "_nats"))  # explained, measured
    ]
    if different:
        workspace.note(f"the recorded thresholds were learned with another scorer ({'; '.join(different)})")


def _collect(workspace: Workspace) -> dict[str, Any]:
    stock = _of_system(workspace, workspace.plan.stock)
    candidates = {system.name: _of_system(workspace, system) for system in workspace.plan.systems}
    for name, found in {workspace.plan.stock.name: stock, **candidates}.items():
        if found.measured.get("host_source") == TOLD_BY_ENGINE:
            workspace.note(f"{name}: {TOLD_BY_ENGINE}, and not looked up on this machine")
    return {
        "stock": stock.to_json(),
        "candidates": {name: fingerprint.to_json() for name, fingerprint in candidates.items()},
        "differences": {
            name: [str(difference) for difference in comparable(stock, fingerprint)]
            for name, fingerprint in candidates.items()
        },
        "scorer": {
            "engine": workspace.plan.config.scorer.engine,
            "options": dict(workspace.plan.config.scorer.options),
        },
    }


def _of_system(workspace: Workspace, system: SystemConfig) -> Fingerprint:
    facts = workspace.engine(system).fingerprint()
    sources = source_facts(system)
    return collect_fingerprint(
        target=workspace.target_path,
        engine={**facts, "sources": sources} if sources else facts,
        served=workspace.model_path(system) if system.model else None,
    )


def _require_comparable(workspace: Workspace, saved: dict[str, Any], now: dict[str, Any]) -> None:
    """Replies of the same system from two machines must not be judged as one run."""
    pairs = {"stock": (saved["stock"], now["stock"])}
    pairs |= {name: (saved["candidates"][name], found) for name, found in now["candidates"].items()}
    for name, (before, after) in pairs.items():
        differences = comparable(Fingerprint.from_json(before), Fingerprint.from_json(after))
        if differences:
            raise _elsewhere(workspace, name, "; ".join(map(str, differences)))


def _elsewhere(workspace: Workspace, name: str, differences: str) -> UsageError:
    return UsageError(
        f"{name} of {workspace.folder.path} ran elsewhere: {differences}",
        why="half a run from one stack and half from another is a comparison of nothing",
        fix="resume where the run was started, or start a new run",
        code="LG0614",
    )
