"""What engines know once they have their weights: kept beside their replies, and shown with their fingerprints.

Not covered: systems that another process serves ahead (``Plan.serve_ahead``), whose engines here load nothing.
"""

from __future__ import annotations

from typing import Any

from lossguard.config import SystemConfig
from lossguard.engines.base import TellsLoaded
from lossguard.run_folder import reading
from lossguard.stages.workspace import Workspace

FILE = "loaded.json"


def keep_loaded_facts(workspace: Workspace, system: SystemConfig) -> None:
    """Write what the system's engine tells of what it has loaded, if it has; a resumed run keeps what is there."""
    engine = workspace.opened(system)
    facts: dict[str, Any] = dict(engine.loaded_facts()) if isinstance(engine, TellsLoaded) else {}
    if facts and not (workspace.folder.path / system.name / FILE).is_file():
        for name, text in facts.items():
            workspace.note(f"{system.name} has loaded {name}: {text}")
        workspace.folder.system(system.name)
        workspace.folder.write_json(f"{system.name}/{FILE}", facts)


def with_loaded_facts(workspace: Workspace, fingerprints: dict[str, Any]) -> dict[str, Any]:
    """Fingerprints of a report with these facts among what was measured. Raises IntegrityError LG0606."""
    plan = workspace.plan
    candidates = {
        system.name: _with(workspace, system, fingerprints["candidates"][system.name]) for system in plan.systems
    }
    return {**fingerprints, "stock": _with(workspace, plan.stock, fingerprints["stock"]), "candidates": candidates}


def _with(workspace: Workspace, system: SystemConfig, fingerprint: dict[str, Any]) -> dict[str, Any]:
    path = workspace.folder.path / system.name / FILE
    if not path.is_file():
        return fingerprint
    facts = workspace.folder.read_json(f"{system.name}/{FILE}")
    with reading(path):
        loaded = {f"loaded.{name}": value for name, value in facts.items()}
        return {**fingerprint, "measured": {**fingerprint["measured"], **loaded}}
