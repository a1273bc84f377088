"""plan.json: a plan as the run folder keeps it, so that a run resumes and is judged again without its command line."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lossguard.config import Config, PromptsConfig, ScorerConfig, SystemConfig
from lossguard.errors import UsageError
from lossguard.plan import Budget, Plan, SystemHandle
from lossguard.request_parameters import request_parameters
from lossguard.timing_plan import Timing

SCHEMA_VERSION = 1


def plan_to_json(plan: Plan) -> dict[str, Any]:
    """Everything that decides what the run serves and judges."""
    systems = {system.name: _system_to_json(system) for system in (plan.stock, *plan.systems)}
    in_process = [name for name in systems if plan.handle(name) is not None]
    return {
        "schema_version": SCHEMA_VERSION,
        "model": plan.config.model,
        "config_folder": str(plan.config.folder.absolute()),
        "systems": systems,
        "in_process": in_process,
        "scorer": asdict(plan.config.scorer),
        "prompts": {"sets": list(plan.prompt_sets or plan.config.prompts.sets), "seed": plan.config.prompts.seed},
        "baseline": plan.stock.name,
        "candidates": [system.name for system in plan.systems],
        "budget": asdict(plan.sizes),
        "seed": plan.effective_seed,
        "temperature": plan.effective_temperature,
        "repeats": plan.repeats,
        "record": str(plan.record.absolute()) if plan.record else None,
        **({"strict": True} if plan.strict else {}),  # absent from the files of earlier versions
        **({"parameters": dict(plan.config.parameters)} if plan.config.parameters else {}),  # likewise
        "timing": timing_to_json(plan.timing) if plan.timing else None,
    }


def _system_to_json(system: SystemConfig) -> dict[str, Any]:
    """Without ``exercise`` where there is none: files of earlier versions have no such key."""
    table = asdict(system)
    return table if table["exercise"] else {key: value for key, value in table.items() if key != "exercise"}


def plan_from_json(data: Mapping[str, Any], run_folder: Path) -> Plan:
    """The plan of a run folder, set to resume it. In-process systems come back without their callable."""
    systems = {name: SystemConfig(**table) for name, table in data["systems"].items()}
    config = Config(
        model=data["model"],
        systems=systems,
        scorer=ScorerConfig(**data["scorer"]),
        prompts=PromptsConfig(sets=tuple(data["prompts"]["sets"]), seed=data["prompts"]["seed"]),
        seed=data["seed"],
        folder=Path(data["config_folder"]),
        parameters=request_parameters(data.get("parameters", {})),
    )
    return Plan(
        config,
        baseline=data["baseline"],
        candidates=data["candidates"],
        budget=Budget(**data["budget"]),
        temperature=data["temperature"],
        repeats=data["repeats"],
        strict=data.get("strict", False),
        folder=run_folder.parent,
        resume=run_folder,
        record=Path(data["record"]) if data.get("record") else None,
        timing=timing_from_json(data["timing"]) if data.get("timing") else None,
    )


def timing_to_json(timing: Timing) -> dict[str, Any]:
    """JSON values of a timing plan."""
    return {**asdict(timing), "devices": list(timing.devices), "noise_root": str(timing.noise_root.absolute())}


def timing_from_json(data: Mapping[str, Any]) -> Timing:
    """Inverse of ``timing_to_json``."""
    return Timing(**{**data, "devices": tuple(data["devices"]), "noise_root": Path(data["noise_root"])})


def require_same_plan(saved: Mapping[str, Any], plan: Plan, run_folder: Path) -> None:
    """Raise UsageError LG0612 if a resumed run was planned otherwise, naming the differences."""
    now = plan_to_json(plan)
    different = sorted(key for key in now.keys() | saved.keys() if _plain(now.get(key)) != _plain(saved.get(key)))
    if different:
        raise UsageError(
            f"{run_folder} was planned with other values of: {', '.join(different)}",
            why="replies of two different plans must not be judged as one run",
            fix="start a new run, or resume with the very same plan",
            code="LG0612",
        )


def handles(plan: Plan) -> tuple[SystemHandle, ...]:
    """The in-process systems of a plan."""
    return tuple(system for system in (plan.baseline, *plan.candidates) if isinstance(system, SystemHandle))


def _plain(value: Any) -> Any:
    """As JSON gives it back: tuples are lists, keys are strings."""
    if isinstance(value, Mapping):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
