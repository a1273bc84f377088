"""One server of the configuration in the foreground, for trying it by hand."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from lossguard.config import Config
from lossguard.engines.base import EngineSpec
from lossguard.engines.registry import engine_factory
from lossguard.engines.servers.server_engine import ServerEngine
from lossguard.errors import UsageError
from lossguard.models import resolve_model

POLL_SECONDS = 0.2


def serve_foreground(config: Config, name: str, write: Callable[[str], None]) -> int:
    """Start a system as a run would, show its log until it ends or the caller interrupts; its exit code.

    ``write`` gets text as it comes. Raises UsageError LG0232 for a system that is no server to launch, and what
    starting raises. The server ends with this call, whatever ends it.
    """
    system = config.system(name)
    model = str(resolve_model(system.model or config.model, config.folder))
    engine = engine_factory(system.engine)(EngineSpec(name=name, model_path=model, options=system.options))
    if not isinstance(engine, ServerEngine) or "launch" not in system.options:
        engine.close()
        raise _no_server(name, system.engine)
    try:
        url = engine.start()
        write(f"{name} serves at {url}; log: {engine.log}; Ctrl-C ends it\n")
        return _follow(engine, write)
    finally:
        engine.close()


def _follow(engine: ServerEngine, write: Callable[[str], None]) -> int:
    seen = 0
    while True:
        code = engine.exit_code
        if engine.log is not None:
            seen = _copy(engine.log, seen, write)
        if code is not None:
            return code
        time.sleep(POLL_SECONDS)


def _copy(log: Path, seen: int, write: Callable[[str], None]) -> int:
    with log.open("rb") as file:
        file.seek(seen)
        new = file.read()
    if new:
        write(new.decode("utf-8", "replace"))
    return seen + len(new)


def _no_server(name: str, kind: str) -> UsageError:
    return UsageError(
        f"the system {name!r} (engine {kind!r}) is no server that lossguard launches",
        why="there is nothing to run in the foreground: it works inside lossguard, or runs already behind its url",
        fix="name a system with a launch command",
        code="LG0232",
    )
