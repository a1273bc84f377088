"""What crosses from the process that ran a test to the one that decides: JSON strings, made by one strict encoder."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from lossguard.pytest_plugin.problems import not_plain

PROPERTY = "lossguard"
CLAIM_PROPERTY = "lossguard.claim"
VERDICT_PROPERTY = "lossguard.verdict"
HEADLINE_PROPERTY = "lossguard.headline"
REPORT_PROPERTY = "lossguard.report"
WORKER_OUTPUT = "lossguard"
WORKER_DEVICE = "lossguard_device"
VERSION = 1


def encode(value: object) -> str:
    """JSON of plain values only. Raises IntegrityError LG0809 for anything else.

    Types are compared exactly: a numpy float is a float to ``isinstance``, and no float to what carries reports
    from worker to controller.
    """
    _require_plain(value, "$")
    return json.dumps(value, allow_nan=False, ensure_ascii=True, separators=(",", ":"))


def decode(text: object) -> dict[str, Any]:
    """The inverse for objects. Raises ValueError if it is none."""
    if not isinstance(text, str):
        raise ValueError(f"a {type(text).__name__} is no JSON text")
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError("the JSON text holds no object")
    return value


def _require_plain(value: object, place: str) -> None:
    kind = type(value)
    if value is None or kind in (str, bool, int):
        return
    if kind is float:
        if not math.isfinite(value):  # type: ignore[arg-type]
            raise not_plain(f"{place} is {value}")
    elif kind is dict:
        for key, item in value.items():  # type: ignore[attr-defined]
            if type(key) is not str:
                raise not_plain(f"{place} has the key {key!r}, which is no string")
            _require_plain(item, f"{place}.{key}")
    elif kind in (list, tuple):
        for index, item in enumerate(value):  # type: ignore[arg-type]
            _require_plain(item, f"{place}[{index}]")
    else:
        raise not_plain(f"{place} is a {kind.__module__}.{kind.__qualname__}")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMessage:
    """What became of a claim in the process that ran its test.

    ``status`` is PASS, FAIL, INCONCLUSIVE, RECORDED, KEPT or ERROR; ``source`` says where the baseline came from and
    ``source_reason`` why; ``record_path`` is a new record that the controller puts into the store; ``exit_code`` that
    of an error.
    """

    claim: str
    status: str
    summary: str
    text: str = ""
    candidate: str = ""
    baseline: str = ""
    source: str = ""
    source_reason: str = ""
    report_path: str = ""
    record_path: str = ""
    exit_code: int = 0
    evidence: Mapping[str, Any] = field(default_factory=dict)

    def to_text(self) -> str:
        """One JSON string; ``from_text`` is the inverse."""
        return encode({"version": VERSION, **asdict(self)})

    @classmethod
    def from_text(cls, text: object) -> ClaimMessage:
        """Raises ValueError for anything that ``to_text`` did not write."""
        data = decode(text)
        if data.pop("version", None) != VERSION:
            raise ValueError("it was written by another version of lossguard")
        try:
            return cls(**data)
        except TypeError as error:
            raise ValueError(str(error)) from error


def plain(value: Mapping[str, Any]) -> dict[str, Any]:
    """A report's values as a file would give them back: tuples are lists, number types are Python's own."""
    copied: dict[str, Any] = json.loads(json.dumps(value, allow_nan=False))
    return copied
