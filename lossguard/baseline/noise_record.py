"""The noise profile of a baseline: stock against stock, as a file that is refused where it was not measured.

``ROOT/NAME/noise-<hash of the conditions>.json``. The conditions (sizes, metric, design) are in the name, so that a
profile of another kind of campaign is never found; the fingerprint (devices, engine, model, host) is inside, so that
one of another machine is found and refused.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.baseline.atomic import write_bytes_atomically
from lossguard.baseline.parameters import require_name
from lossguard.errors import BaselineError
from lossguard.fingerprint import Fingerprint, comparable
from lossguard.records import require_finite

SCHEMA_VERSION = 1
PREFIX, SUFFIX = "noise-", ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class NoiseRecord:
    """What was measured, under which conditions, where. ``pairs`` are the swap pairs as the gate keeps them."""

    baseline: str
    created: str
    conditions: Mapping[str, Any]
    fingerprint: Fingerprint
    strata: tuple[str, ...]
    pairs: tuple[Mapping[str, Any], ...]
    summary: Mapping[str, Any]

    def to_json(self) -> dict[str, Any]:
        """A JSON object with the hash of its own content."""
        content = {
            "schema_version": SCHEMA_VERSION,
            "kind": "noise",
            "baseline": self.baseline,
            "created": self.created,
            "conditions": dict(self.conditions),
            "fingerprint": self.fingerprint.to_json(),
            "strata": list(self.strata),
            "pairs": [dict(pair) for pair in self.pairs],
            "summary": dict(self.summary),
        }
        require_finite(content)
        return {**content, "sha256": _sha256(content)}


def noise_path(root: Path, name: str, conditions: Mapping[str, Any]) -> Path:
    """Where the profile of these conditions is, or would be. Raises UsageError LG0708."""
    return root / require_name(name) / f"{PREFIX}{_sha256(conditions)[:12]}{SUFFIX}"


def write_noise(root: Path, record: NoiseRecord) -> Path:
    """Write a profile atomically, over an earlier one of the same conditions. Raises StorageError LG0707."""
    path = noise_path(root, record.baseline, record.conditions)
    text = json.dumps(record.to_json(), indent=1, allow_nan=False) + "\n"
    return write_bytes_atomically(path, text.encode())


def read_noise(path: Path) -> NoiseRecord:
    """Read a profile. Raises BaselineError LG1007 if it is damaged, was edited, or is of another lossguard."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        stated = data.pop("sha256")
        if data.pop("kind") != "noise" or data["schema_version"] != SCHEMA_VERSION:
            raise unreadable_noise(path, f"it is of schema {data['schema_version']!r}, known is {SCHEMA_VERSION}")
        if _sha256({**data, "kind": "noise"}) != stated:
            raise unreadable_noise(path, "its content does not have the hash that it states: it was edited")
        return NoiseRecord(
            baseline=data["baseline"],
            created=data["created"],
            conditions=data["conditions"],
            fingerprint=Fingerprint.from_json(data["fingerprint"]),
            strata=tuple(data["strata"]),
            pairs=tuple(data["pairs"]),
            summary=data["summary"],
        )
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise unreadable_noise(path, f"{type(error).__name__}: {error}") from error


def list_noise(root: Path, name: str | None = None) -> tuple[Path, ...]:
    """The profiles of one baseline, or of all, sorted."""
    pattern = f"{require_name(name) if name else '*'}/{PREFIX}*{SUFFIX}"
    return tuple(sorted(path for path in root.glob(pattern) if not path.name.startswith(".")))


def require_comparable_noise(record: NoiseRecord, here: Fingerprint, path: Path) -> None:
    """Raise BaselineError LG1006 if the profile was measured on other devices, engines, models or hosts."""
    differences = comparable(record.fingerprint, here)
    if differences:
        raise BaselineError(
            f"the noise profile {path} was measured elsewhere: {'; '.join(map(str, differences))}",
            why="noise belongs to devices, engine and host; that of others makes a threshold of nothing",
            fix=f"record it here: lossguard noise record {record.baseline}",
            code="LG1006",
        )


def unreadable_noise(path: Path, what: str) -> BaselineError:
    """BaselineError LG1007."""
    return BaselineError(
        f"the noise profile {path} cannot be used: {what}",
        why="the threshold of every speed claim rests on it",
        fix="record it again: lossguard noise record",
        code="LG1007",
    )


def _sha256(value: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
