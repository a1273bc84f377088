"""The fixture ``lossguard_engine``: systems served by the tests themselves, one engine per system and process."""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import pytest

from lossguard.pytest_plugin.candidates import BASELINES_KEY, candidate_of, known_system

if TYPE_CHECKING:
    from lossguard.engines.base import Engine
    from lossguard.plan import SystemHandle


class EngineOpener:
    """``opener()`` is the engine of the test's candidate, ``opener("stock")`` that of another system."""

    def __init__(self, item: pytest.Item, system: object) -> None:
        self._item = item
        self._system = system

    def __call__(self, name: str | None = None) -> Engine:
        """The running engine of a system, started on first use in this process (with xdist: in each worker).

        It stays open for later tests, unless it is one that ``lossguard_system`` makes anew. It is closed when the
        session ends and before a claim is judged, since an engine that holds the device would disturb the run; ask
        again after ``assert_lossless()``. Raises UsageError LG0804 (no candidate) or LG0602 (no such system), and
        what the engine raises.
        """
        engines = _open_engines(self._item.config)
        return engines.get(self._item, self._candidate if name is None else engines.system(self._item, name))

    @cached_property
    def _candidate(self) -> str | SystemHandle:
        return candidate_of(self._item, self._system)


class OpenEngines:
    """The engines that tests of this process have open, by the system's name."""

    def __init__(self) -> None:
        self._open: dict[str, tuple[str | SystemHandle, Engine]] = {}
        self._systems: dict[str, str | SystemHandle] = {}

    def system(self, item: pytest.Item, name: str) -> str | SystemHandle:
        """The system of a name, looked up once."""
        if name not in self._systems:
            self._systems[name] = known_system(item, name)
        return self._systems[name]

    def get(self, item: pytest.Item, system: str | SystemHandle) -> Engine:
        """The engine of a system; another system of the same name takes its place."""
        from lossguard import gate

        name = system if isinstance(system, str) else system.config.name
        if name in self._open:
            source, engine = self._open[name]
            if source == system:
                return engine
            del self._open[name]
            engine.close()
        engine = gate.open_engine(item.config.stash[BASELINES_KEY].config, system)
        self._open[name] = (system, engine)
        return engine

    def close(self) -> None:
        """Give back what they hold."""
        while self._open:
            _, (_, engine) = self._open.popitem()
            engine.close()


ENGINES_KEY = pytest.StashKey[OpenEngines]()


def _open_engines(config: pytest.Config) -> OpenEngines:
    if ENGINES_KEY not in config.stash:
        config.stash[ENGINES_KEY] = OpenEngines()
        config.add_cleanup(config.stash[ENGINES_KEY].close)
    return config.stash[ENGINES_KEY]


def close_engines(config: pytest.Config) -> None:
    """Before a claim is judged: no engine of a test shares the device with the run."""
    if ENGINES_KEY in config.stash:
        config.stash[ENGINES_KEY].close()
