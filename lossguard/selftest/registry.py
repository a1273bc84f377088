"""Finding the parts of the selftest: built in, or from anybody's package through an entry point.

A part is called ``SUBJECT-KIND``: the subject is what is proved (``losslessness``, ``timing``), the kind how
(``simulate``: by simulation, ``live``: on running systems).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from importlib import import_module
from importlib.metadata import entry_points
from typing import cast

from lossguard.errors import UsageError, near_miss
from lossguard.listener import Listener
from lossguard.records import Verdict
from lossguard.selftest.base import RunPart, SelftestOptions, SelftestPart, SelftestResult

ENTRY_POINT_GROUP = "lossguard.selftests"
BUILT_IN = {
    "losslessness-simulate": "lossguard.selftest.losslessness:run",
    "timing-live": "lossguard.selftest.timing_live:run",
    "timing-simulate": "lossguard.selftest.timing_simulation:run",
}

EXPECTED = ("losslessness-live", "losslessness-simulate", "timing-live", "timing-simulate")
"""The whole proof. A part that is not installed (``losslessness-live`` comes with the suites) is missing, not fine."""


class Kind(StrEnum):
    """How a part proves its subject."""

    SIMULATE = "simulate"
    LIVE = "live"


def part_names(subject: str | None, kinds: tuple[Kind, ...]) -> tuple[str, ...]:
    """The parts of a subject (None: of all) and of these kinds, sorted, with expected parts that are not installed.

    Raises UsageError LG0901 if none of them is installed.
    """
    known = _entries()
    split = {name: name.rpartition("-")[::2] for name in {*known, *EXPECTED}}
    found = tuple(
        sorted(name for name, (about, kind) in split.items() if subject in (None, about) and kind in set(kinds))
    )
    if not known.keys() & set(found):
        wanted = f"{subject or 'any subject'} ({', '.join(kinds)})"
        raise UsageError(
            f"no selftest of {wanted} is installed. {near_miss(subject or '', known)}",
            why="a selftest that runs nothing would prove nothing",
            fix=f"install the package that offers it (entry point group {ENTRY_POINT_GROUP}), such as the suites",
            code="LG0901",
        )
    return found


def run_parts(names: tuple[str, ...], options: SelftestOptions, listener: Listener) -> SelftestResult:
    """Run parts in order; a part that raises ends the selftest. One that is not installed is INCONCLUSIVE."""
    known = _entries()
    return SelftestResult(
        parts=tuple(load_part(name)(options, listener) if name in known else _missing(name) for name in names)
    )


def _missing(name: str) -> SelftestPart:
    return SelftestPart(
        name=name,
        verdict=Verdict.INCONCLUSIVE,
        summary="this part is not installed, so nothing shows that its promises hold",
        notes=(f"install the package that offers it (entry point group {ENTRY_POINT_GROUP}), such as the suites",),
    )


def load_part(name: str) -> RunPart:
    """The function of one part. Raises UsageError LG0902 if its entry point leads nowhere."""
    target = _entries()[name]
    module_name, _, attribute = target.partition(":")
    function = getattr(import_module(module_name), attribute, None)
    if not callable(function):
        raise UsageError(
            f"the selftest {name!r} points to {target}, which is not a function",
            why="without it this part of the proof would be missing",
            fix=f"correct the entry point {name!r} in the group {ENTRY_POINT_GROUP} of the package that offers it",
            code="LG0902",
        )
    return cast("RunPart", function)


def _entries() -> Mapping[str, str]:
    """Names to targets; an installed package does not replace a built-in part."""
    return {point.name: point.value for point in entry_points(group=ENTRY_POINT_GROUP)} | BUILT_IN
