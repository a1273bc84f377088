"""The list of faults and controls. Importing it imports no torch."""

from __future__ import annotations

from lossguard.errors import UsageError, near_miss
from lossguard_suites.adversarial.faults.controls import CONTROLS
from lossguard_suites.adversarial.faults.fault import Fault
from lossguard_suites.adversarial.faults.output_faults import OUTPUT_FAULTS
from lossguard_suites.adversarial.faults.sampling_faults import SAMPLING_FAULTS
from lossguard_suites.adversarial.faults.state_faults import STATE_FAULTS
from lossguard_suites.adversarial.faults.token_faults import TOKEN_FAULTS

FAULTS: tuple[Fault, ...] = (*STATE_FAULTS, *TOKEN_FAULTS, *SAMPLING_FAULTS, *OUTPUT_FAULTS, *CONTROLS)
"""Everything that can be planted, controls included."""

PLANTED = tuple(item for item in FAULTS if not item.is_control and not item.is_pending)
"""Faults that a check of today must see."""

PENDING = tuple(item for item in FAULTS if item.is_pending)
"""Faults whose check does not exist yet."""


def fault(name: str) -> Fault:
    """The fault or control of that name. Raises UsageError LG0216 with the near miss if there is none."""
    known = {item.name: item for item in FAULTS}
    if name not in known:
        raise UsageError(
            f"no fault is called {name!r}. {near_miss(name, known)}",
            why="an instrument is proved with the fault that was meant",
            fix="name one of the known faults (docs/faults.md)",
            code="LG0216",
        )
    return known[name]
