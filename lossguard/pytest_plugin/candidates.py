"""Which system a test is about: the fixture's, else the marker's or the session's name, looked up or offered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from lossguard.pytest_plugin.baselines import Baselines
from lossguard.pytest_plugin.marker import MARK_KEY
from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.problems import no_candidate, other_candidate

if TYPE_CHECKING:
    from lossguard.plan import SystemHandle

    Generate = Callable[[list[list[int]], int], list[list[int]]]

SETTINGS_KEY = pytest.StashKey[Settings]()
BASELINES_KEY = pytest.StashKey[Baselines]()


def candidate_of(item: pytest.Item, system: object) -> str | SystemHandle:
    """The system under test; ``system`` is what the fixture ``lossguard_system`` gave. Raises UsageError LG0804.

    Where the marker or the session names a system of the configuration, the fixture must not put another in its place:
    UsageError LG0815. A handle with a name of its own (a variant of that system) is judged under its own name.
    """
    from lossguard.plan import SystemHandle
    from lossguard.systems import from_callable

    mark = item.stash.get(MARK_KEY, None)
    name = (mark.candidate if mark else None) or item.config.stash[SETTINGS_KEY].candidate
    _require_named(item, name, system)
    if isinstance(system, SystemHandle):
        return system
    if callable(system):
        return from_callable(cast("Generate", system), name=name or "candidate")
    if isinstance(system, str):
        name = system
    if name is None:
        raise no_candidate(f"the claim {mark.claim!r}" if mark else item.nodeid)
    return known_system(item, name)


def _require_named(item: pytest.Item, name: str | None, system: object) -> None:
    if system is None or name is None or name not in item.config.stash[BASELINES_KEY].config.systems:
        return
    from lossguard.plan import SystemHandle

    mark = item.stash.get(MARK_KEY, None)
    is_by_mark = mark is not None and mark.candidate is not None
    if isinstance(system, SystemHandle):
        if system.config.name != name and not is_by_mark:
            return
        raise other_candidate(item.nodeid, name, f"a handle called {system.config.name!r}")
    if system != name:
        raise other_candidate(item.nodeid, name, repr(system) if isinstance(system, str) else "a function")


def known_system(item: pytest.Item, name: str) -> str | SystemHandle:
    """A system of the configuration, else the one that a hook offers; else the name, which the plan will refuse."""
    if name in item.config.stash[BASELINES_KEY].config.systems:
        return name
    offered: SystemHandle | None = item.config.hook.pytest_lossguard_engine(config=item.config, name=name)
    return offered or name
