"""Finding an engine by its kind: built in, or from anybody's package through an entry point."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.metadata import EntryPoint, entry_points
from typing import Any, cast

from lossguard.engines.base import Engine, EngineSpec
from lossguard.errors import UsageError, near_miss

EngineFactory = Callable[[EngineSpec], Engine]

ENTRY_POINT_GROUP = "lossguard.engines"
BUILT_IN = {
    "callable": "lossguard.engines.callable_engine:create",
    "llamacpp": "lossguard.engines.servers.factories:create_llamacpp",
    "openai": "lossguard.engines.servers.factories:create_openai",
    "sglang": "lossguard.engines.servers.factories:create_sglang",
    "transformers": "lossguard.engines.transformers_engine:create",
    "vllm": "lossguard.engines.servers.factories:create_vllm",
}
EXTRA_PACKAGES = {"transformers": frozenset({"accelerate", "tokenizers", "torch", "transformers"})}


def engine_kinds() -> tuple[str, ...]:
    """The kinds that a configuration may name, sorted."""
    return tuple(sorted(_entries()))


def engine_factory(kind: str) -> EngineFactory:
    """The factory of an engine kind: a registered name, or ``module:factory`` without registration.

    Built-in kinds need no installed metadata, so that a source tree works too; an entry point of the same name
    does not replace a built-in one, or an installed package could quietly become "stock".

    Raises UsageError LG0201 (no such kind), LG0202 (a package it needs is not installed) or LG0203 (its entry
    point cannot be loaded).
    """
    entries = {kind: kind} if ":" in kind else _entries()
    if kind not in entries:
        raise UsageError(
            f"no engine is called {kind!r}. {near_miss(kind, entries)}",
            why="the engine decides what is served and measured, so none is ever guessed",
            fix=f"name a known engine, or install the package that offers it (entry point group {ENTRY_POINT_GROUP})",
            code="LG0201",
        )
    return _load(kind, entries[kind])


def _entries() -> dict[str, str]:
    found = {entry.name: entry.value for entry in _installed_entries()}
    return found | BUILT_IN


def _installed_entries() -> tuple[EntryPoint, ...]:
    return tuple(entry_points(group=ENTRY_POINT_GROUP))


def _load(kind: str, target: str) -> EngineFactory:
    module_name, _, attribute = target.partition(":")
    try:
        loaded: Any = import_module(module_name)
    except ModuleNotFoundError as error:
        raise _missing_package(kind, error) from error
    if not callable(getattr(loaded, attribute, None)):
        raise UsageError(
            f"the engine {kind!r} points to {target}, which is not a function",
            why="without its factory the engine cannot be made",
            fix=f"correct the entry point {kind!r} in the group {ENTRY_POINT_GROUP} of the package that offers it",
            code="LG0203",
        )
    return cast("EngineFactory", getattr(loaded, attribute))


def _missing_package(kind: str, error: ModuleNotFoundError) -> UsageError:
    package = (error.name or "").partition(".")[0]
    is_extra = package in EXTRA_PACKAGES.get(kind, frozenset())
    fix = f"pip install 'lossguard[{kind}]'" if is_extra else f"install the package {package!r} beside lossguard"
    return UsageError(
        f"the engine {kind!r} needs the package {package!r}, which is not installed",
        why="optional engines bring heavy packages, which lossguard does not install unasked",
        fix=fix,
        code="LG0202",
    )
