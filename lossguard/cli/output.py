"""Writing a report where the user asked for it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lossguard.run_folder import write_atomically


def write_report(path: Path | None, report: Mapping[str, Any]) -> None:
    """Write ``report`` to ``path``, if there is one."""
    if path is not None:
        write_atomically(path, json.dumps(report, indent=2, allow_nan=False, ensure_ascii=False) + "\n")
