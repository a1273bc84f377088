"""Hashes of the code that a configuration names: a system whose function was changed is another system."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from lossguard.config import SystemConfig
from lossguard.stages.timing.source_hash import sources_sha256

KEYS = ("target", "logits_processors", "state_edits", "draft_edits", "post_processors")


def source_facts(system: SystemConfig) -> Mapping[str, str | None]:
    """``module:name`` to the hash of its sources, for the engine, its target and its extension functions.

    Called after the engine was made, so that its modules are loaded; a name that no loaded module has is left out.
    The hash is of the module's package, else of its one file, and None where it has no file. What these import from
    elsewhere is not in it. Engines known by a kind are told apart by the version of their package; a function that
    exists only in this process (``from_callable``) has no sources that could be named.
    """
    return {target: found for target, found in _hashes(system)}


def _hashes(system: SystemConfig) -> Iterator[tuple[str, str | None]]:
    named = [system.engine, *(value for key in KEYS for value in _texts(system.options.get(key)))]
    for target in sorted({text for text in named if ":" in text}):
        module = sys.modules.get(target.partition(":")[0])
        if module is not None:
            origin = getattr(module, "__file__", None)
            yield target, None if origin is None else sources_sha256(Path(origin))


def _texts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        yield value
    elif isinstance(value, Mapping):
        yield from _texts(value.get("factory"))
    elif isinstance(value, (list, tuple)):
        for item in value:
            yield from _texts(item)
