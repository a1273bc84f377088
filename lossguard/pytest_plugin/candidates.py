"""Which system a test is about: the fixture's, else the marker's or the session's name, looked up or offered."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

import pytest

from lossguard.pytest_plugin.baselines import Baselines
from lossguard.pytest_plugin.marker import MARK_KEY
from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.problems import no_candidate

if TYPE_CHECKING:
    from lossguard.plan import SystemHandle

    Generate = Callable[[list[list[int]], int], list[list[int]]]

SETTINGS_KEY = pytest.StashKey[Settings]()
BASELINES_KEY = pytest.StashKey[Baselines]()


def candidate_of(item: pytest.Item, system: object) -> str | SystemHandle:
    """The system under test; ``system`` is what the fixture ``lossguard_system`` gave. Raises UsageError LG0804."""
    from lossguard.plan import SystemHandle
    from lossguard.systems import from_callable

    mark = item.stash.get(MARK_KEY, None)
    name = (mark.candidate if mark else None) or item.config.stash[SETTINGS_KEY].candidate
    if isinstance(system, SystemHandle):
        return system
    if callable(system):
        return from_callable(cast("Generate", system), name=name or "candidate")
    if isinstance(system, str):
        name = system
    if name is None:
        raise no_candidate(f"the claim {mark.claim!r}" if mark else item.nodeid)
    return known_system(item, name)


def known_system(item: pytest.Item, name: str) -> str | SystemHandle:
    """A system of the configuration, else the one that a hook offers; else the name, which the plan will refuse."""
    if name in item.config.stash[BASELINES_KEY].config.systems:
        return name
    offered: SystemHandle | None = item.config.hook.pytest_lossguard_engine(config=item.config, name=name)
    return offered or name
