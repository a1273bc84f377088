"""From older schema versions to the present one, a step at a time.

A change of the form on disk raises ``SCHEMA_VERSION``, adds a step here, and keeps a test with a file of the old form.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Final

import numpy as np

from lossguard.baseline.ragged import pack
from lossguard.baseline.schema import SCHEMA_VERSION, RawRecord

Migration = Callable[[RawRecord], RawRecord]


def _prompt_ids_become_arrays(raw: RawRecord) -> RawRecord:
    """0 -> 1: prompt ids were lists in the JSON of each request."""
    facts, tensors = dict(raw.facts), dict(raw.tensors)
    for name in ("calibration_requests", "test_requests"):
        tensors |= pack(f"{name}.prompt_ids", [entry["prompt_ids"] for entry in facts[name]], np.int32)
        facts[name] = [{key: entry[key] for key in entry if key != "prompt_ids"} for entry in facts[name]]
    return RawRecord(facts=facts, tensors=tensors)


MIGRATIONS: Final[Mapping[int, Migration]] = MappingProxyType({0: _prompt_ids_become_arrays})
"""Version -> the step to the next one."""


def is_readable(version: int) -> bool:
    """Whether records of this version can be brought to the present one."""
    return version <= SCHEMA_VERSION and all(step in MIGRATIONS for step in range(version, SCHEMA_VERSION))


def migrate(raw: RawRecord, version: int) -> RawRecord:
    """The same record in the present form. ``is_readable(version)`` must hold."""
    for step in range(version, SCHEMA_VERSION):
        raw = MIGRATIONS[step](raw)
    return raw
