"""What plug-ins of ours say in the log of a launched server: lines that hold ``lossguard NAME: TEXT``."""

from __future__ import annotations

import re
from pathlib import Path

LINE = re.compile(r"\blossguard (?P<name>[a-z0-9_]+): (?P<text>.+)")


def facts_in_log(log: Path | None) -> dict[str, str]:
    """Texts by name, the last of each; empty without a log. Servers of several processes repeat lines."""
    if log is None or not log.is_file():
        return {}
    with log.open(encoding="utf-8", errors="replace") as lines:
        found = [match for line in lines if (match := LINE.search(line))]
    return {match["name"]: match["text"].strip() for match in found}
