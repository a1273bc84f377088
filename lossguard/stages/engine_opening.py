"""Making the engine of a system: its factory, its model's folder, its options."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from lossguard.config import Config, SystemConfig
from lossguard.engines.base import Engine, EngineSpec
from lossguard.engines.registry import engine_factory
from lossguard.models import resolve_model
from lossguard.plan import SystemHandle


def model_path(config: Config, system: SystemConfig) -> Path:
    """The folder that a system serves: its own ``model``, else the target. Raises UsageError for one that is not."""
    return resolve_model(system.model or config.model, config.folder)


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """What a run offers its engines: a folder for logs, and room on accelerators. Outside of a run: neither."""

    folder: Path | None = None
    make_room: Callable[[frozenset[str]], None] = lambda _devices: None


def create_engine(
    config: Config, system: SystemConfig, handle: SystemHandle | None = None, around: Surroundings | None = None
) -> Engine:
    """The engine of a system, through its handle's factory or its kind's. Raises UsageError, EngineError."""
    create: Callable[[EngineSpec], Engine] = handle.create if handle else engine_factory(system.engine)
    around = around or Surroundings()
    spec = EngineSpec(
        name=system.name,
        model_path=str(model_path(config, system)),
        options=system.options,
        folder=around.folder,
        make_room=around.make_room,
    )
    return create(spec)


def open_engine(config: Config, system: str | SystemHandle) -> Engine:
    """The engine of a system of the configuration, or of one that exists in this process only; close it.

    Raises UsageError LG0602 (no such system) and what its factory raises.
    """
    if isinstance(system, str):
        return create_engine(config, config.system(system))
    return create_engine(config, system.config, system)
