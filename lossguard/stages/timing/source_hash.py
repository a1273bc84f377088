"""What code an engine's factory comes from: a patched engine under the same name is another candidate."""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

NUM_FILES_MAX = 5_000


def factory_facts(kind: str) -> Mapping[str, Any]:
    """Target of the engine kind and the hash of its sources: the folder of its package, else its one file.

    Called after the engine was made, so that its module is loaded. Sources of what it imports from elsewhere are not
    in the hash; the engine's own fingerprint names their versions.
    """
    from lossguard.engines.registry import BUILT_IN, ENTRY_POINT_GROUP

    targets = {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)} | BUILT_IN
    target = kind if ":" in kind else targets[kind]
    module = sys.modules[target.partition(":")[0]]
    origin = getattr(module, "__file__", None)
    if origin is None:
        return {"target": target, "sources_sha256": None}
    return {"target": target, "sources_sha256": sources_sha256(Path(origin))}


def sources_sha256(file: Path) -> str:
    """Hash of all Python files beside and below ``file`` if it is part of a package, else of ``file`` alone."""
    is_package = (file.parent / "__init__.py").exists()
    files = sorted(file.parent.rglob("*.py"))[:NUM_FILES_MAX] if is_package else [file]
    digest = hashlib.sha256()
    for path in files:
        digest.update(path.relative_to(file.parent).as_posix().encode() + b"\0" + path.read_bytes())
    return digest.hexdigest()
