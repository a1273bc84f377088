"""The checks say of small fixed runs what they said when somebody last looked: every number and every sentence."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.checks.golden_runs import PATH, RUNS, calibrations, powers, refusals, results_of, rounded

KEPT: dict[str, Any] = json.loads(PATH.read_text(encoding="utf-8"))
CLOSE = 1e-6


def differences(found: Any, kept: Any, place: str = "") -> list[str]:
    """Where two JSON values differ by more than rounding."""
    if isinstance(found, dict) and isinstance(kept, dict):
        keys = sorted({*found, *kept})
        return [text for key in keys for text in differences(found.get(key), kept.get(key), f"{place}/{key}")]
    if isinstance(found, list) and isinstance(kept, list) and len(found) == len(kept):
        return [
            text
            for at, pair in enumerate(zip(found, kept, strict=True))
            for text in differences(*pair, f"{place}/{at}")
        ]
    if isinstance(found, float) and isinstance(kept, (int, float)):
        return [] if found == pytest.approx(kept, rel=CLOSE, abs=1e-12) else [f"{place}: {found} was {kept}"]
    return [] if found == kept else [f"{place}: {found!r} was {kept!r}"]


@pytest.mark.parametrize("name", list(RUNS))
def test_what_is_said_of_a_run(name: str) -> None:
    assert differences(rounded(results_of(RUNS[name]())), KEPT[name]) == []


def test_what_calibration_says() -> None:
    assert differences(rounded(calibrations()), KEPT["calibrations"]) == []


def test_what_power_says() -> None:
    assert differences(rounded(powers()), KEPT["powers"]) == []


def test_what_calibration_refuses() -> None:
    assert differences(refusals(), KEPT["refusals"]) == []


def test_nothing_is_kept_of_runs_that_are_gone() -> None:
    assert set(KEPT) == {*RUNS, "calibrations", "powers", "refusals"}
