"""Reading ``lossguard.toml`` (or ``[tool.lossguard]`` of a pyproject.toml) into frozen values.

Unknown keys are errors that name the near miss; options of an engine are checked by that engine.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError, near_miss
from lossguard.exercise_plan import make_exercise
from lossguard.request_parameters import request_parameters
from lossguard.timing_plan import make_timing

SYSTEM_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
SCORER_FOLDER = "scorer-server"  # of a run: the log of a server that scores
RESERVED_NAMES = frozenset(
    {"log.txt", "plan.json", "report.json", "calibration.json", "fingerprints.json", SCORER_FOLDER}
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """One named way to serve the target model.

    ``options`` are the engine's own keys; ``expect`` says which path must have fired (CHECKS: vacuity), ``exercise``
    how requests are sent so that it does.
    """

    name: str
    engine: str
    model: str | None = None
    expect: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    exercise: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerConfig:
    """The scorer's kind and its own options."""

    engine: str = "torch"
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptsConfig:
    """Which prompt sets are read, pooled."""

    sets: tuple[str, ...] = ("default",)
    seed: int = 17


@dataclass(frozen=True, slots=True, kw_only=True)
class Config:
    """A whole configuration. ``folder`` is what relative paths in it are relative to."""

    model: str
    systems: Mapping[str, SystemConfig]
    scorer: ScorerConfig = ScorerConfig()
    scorers: Mapping[str, ScorerConfig] = field(default_factory=dict)
    """Further scorers by name, to be compared with ``scorer``; they decide nothing."""
    prompts: PromptsConfig = PromptsConfig()
    seed: int = 17
    temperature: float = 0.0
    """Of test requests, where a plan gives none; 0 is greedy decoding."""
    folder: Path = Path()
    parameters: Mapping[str, Any] = field(default_factory=dict)
    """What test requests ask of the sampler besides, as ``request_parameters`` gives it; calibration stays plain."""
    timing: Mapping[str, Any] = field(default_factory=dict)
    """Options of ``lossguard.Timing`` that every speed claim starts from."""

    def system(self, name: str) -> SystemConfig:
        """The system of that name; UsageError (LG0602) with the near miss if there is none."""
        if name not in self.systems:
            raise UsageError(
                f"no system is called {name!r}. {near_miss(name, self.systems)}",
                why="a verdict compares two systems of the configuration, and neither may be guessed",
                fix=f"add a [systems.{name}] table, or name one of the known systems",
                code="LG0602",
            )
        return self.systems[name]


def load_config(path: str | Path | None = None) -> Config:
    """Read a configuration file; without a path, the nearest one from the current folder upwards.

    Raises UsageError: LG0601 (no file, or not readable), LG0603 (a key, type or value that does not fit).
    """
    found = Path(path) if path is not None else _nearest_config()
    try:
        text = found.read_text(encoding="utf-8")
    except OSError as error:
        raise _not_found(f"{found} cannot be read: {error.strerror}") from error
    try:
        data = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise _bad(f"{found} is not valid TOML: {error}") from error
    if found.name == "pyproject.toml":
        data = data.get("tool", {}).get("lossguard", {})
    return config_from_mapping(data, folder=found.parent, source=str(found))


def has_config() -> bool:
    """Whether a configuration is in the current folder or above it."""
    return _search_config() is not None


def _nearest_config() -> Path:
    found = _search_config()
    if found is None:
        raise _not_found(f"no lossguard.toml and no [tool.lossguard] in {Path.cwd()} or above it")
    return found


def _search_config() -> Path | None:
    here = Path.cwd()
    for folder in (here, *here.parents):
        if (folder / "lossguard.toml").is_file():
            return folder / "lossguard.toml"
        pyproject = folder / "pyproject.toml"
        if pyproject.is_file() and "[tool.lossguard" in pyproject.read_text(encoding="utf-8"):
            return pyproject
    return None


def _not_found(found: str) -> UsageError:
    return UsageError(
        found,
        why="lossguard must know the model and the systems that it compares",
        fix="write a lossguard.toml (README, 'Your own systems'), or give --config FILE",
        code="LG0601",
    )


def _bad(found: str, fix: str = "correct the file; docs/configuration.md lists every key") -> UsageError:
    return UsageError(
        found,
        why="a key that is quietly ignored would judge something else than what was asked",
        fix=fix,
        code="LG0603",
    )


def config_from_mapping(data: Mapping[str, Any], *, folder: Path = Path(), source: str = "the configuration") -> Config:
    """Check a parsed configuration. Raises UsageError LG0603."""
    _only_known(
        data,
        {"model", "systems", "scorer", "scorers", "prompts", "seed", "timing", "parameters", "temperature"},
        source,
    )
    if not isinstance(data.get("model"), str):
        raise _bad(f"{source} has no 'model' (a folder, or 'smollm2' for the built-in default)")
    systems = data.get("systems")
    if not isinstance(systems, Mapping) or not systems:
        raise _bad(f"{source} has no [systems.NAME] table")
    return Config(
        model=data["model"],
        systems={name: _system(name, table, source) for name, table in systems.items()},
        scorer=_scorer(data.get("scorer", {}), f"{source}: [scorer]"),
        scorers=_scorers(data.get("scorers", {}), source),
        prompts=_prompts(data.get("prompts", {}), source),
        seed=_integer(data.get("seed", 17), f"{source}: seed"),
        temperature=_temperature(data.get("temperature", 0.0), source),
        folder=folder,
        parameters=_parameters(data.get("parameters", {}), source),
        timing=_timing(data.get("timing", {}), source),
    )


def _temperature(value: Any, source: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0.0 <= value <= 10.0:
        raise _bad(f"{source}: temperature must be a number from 0 to 10, found {value!r}")
    return float(value)


def _parameters(table: Any, source: str) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise _bad(f"{source}: [parameters] must be a table")
    try:
        return request_parameters(table)
    except UsageError as error:
        raise _bad(f"{source}: {error.found}", error.fix) from error


def _timing(table: Any, source: str) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise _bad(f"{source}: [timing] must be a table")
    try:
        make_timing(table)
    except UsageError as error:
        raise _bad(f"{source}: [timing]: {error.found}", error.fix) from error
    return dict(table)


def _only_known(table: Mapping[str, Any], known: set[str], where: str) -> None:
    for key in table:
        if key not in known:
            raise _bad(f"{where} has an unknown key {key!r}. {near_miss(key, known)}")


def _integer(value: Any, where: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise _bad(f"{where} must be a whole number, found {value!r}")
    return value


def _system(name: str, table: Any, source: str) -> SystemConfig:
    where = f"{source}: [systems.{name}]"
    if not SYSTEM_NAME.fullmatch(name) or name in RESERVED_NAMES:
        raise _bad(f"{where} has a name that cannot be a folder; use letters, digits, '.', '_' and '-'")
    if not isinstance(table, Mapping):
        raise _bad(f"{where} must be a table")
    values = dict(table)
    engine = values.pop("engine", None)
    model = values.pop("model", None)
    expect = values.pop("expect", {})
    exercise = _exercise(values.pop("exercise", {}), where)
    if not isinstance(engine, str):
        raise _bad(f"{where} has no 'engine', such as \"transformers\"")
    if model is not None and not isinstance(model, str):
        raise _bad(f"{where} model must be a string, found {model!r}")
    if not isinstance(expect, Mapping):
        raise _bad(f"{where} expect must be a table such as {{ drafts = true }}, found {expect!r}")
    return SystemConfig(name=name, engine=engine, model=model, expect=dict(expect), options=values, exercise=exercise)


def _exercise(table: Any, where: str) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise _bad(f"{where} exercise must be a table such as {{ repeats = 3 }}, found {table!r}")
    try:
        make_exercise(table)
    except UsageError as error:
        raise _bad(f"{where}: {error.found}") from error
    return dict(table)


def _scorers(tables: Any, source: str) -> dict[str, ScorerConfig]:
    if not isinstance(tables, Mapping):
        raise _bad(f"{source}: [scorers] must hold tables such as [scorers.second]")
    return {name: _scorer(table, f"{source}: [scorers.{name}]") for name, table in tables.items()}


def _scorer(table: Any, where: str) -> ScorerConfig:
    if not isinstance(table, Mapping):
        raise _bad(f"{where} must be a table")
    values = dict(table)
    engine = values.pop("engine", "torch")
    if not isinstance(engine, str):
        raise _bad(f"{where} engine must be a string, found {engine!r}")
    return ScorerConfig(engine=engine, options=values)


def _prompts(table: Any, source: str) -> PromptsConfig:
    if not isinstance(table, Mapping):
        raise _bad(f"{source}: [prompts] must be a table")
    _only_known(table, {"sets", "seed"}, f"{source}: [prompts]")
    sets = table.get("sets", ["default"])
    if not isinstance(sets, list) or not sets or not all(isinstance(item, str) for item in sets):
        raise _bad(f"{source}: [prompts] sets must be a list of names or files, found {sets!r}")
    return PromptsConfig(sets=tuple(sets), seed=_integer(table.get("seed", 17), f"{source}: [prompts] seed"))
