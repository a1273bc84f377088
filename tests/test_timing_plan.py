"""Timing options: what fits, what does not, and what a configuration says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lossguard.config import config_from_mapping
from lossguard.errors import UsageError
from lossguard.plan_file import timing_from_json, timing_to_json
from lossguard.timing_plan import Timing, make_timing


@pytest.mark.parametrize(
    "values",
    [
        {"faster_than": 1.1, "not_slower": 0.01},
        {"faster_than": 0.9},
        {"not_slower": 1.0},
        {"pairs": 0},
        {"requests": 0},
        {"nonce_tokens": -1},
        {"order": "abab"},
        {"relaunch": "never"},
        {"estimand": "median"},
        {"metric": "throughput"},
        {"arrivals_per_second": 0.0},
        {"launch_seconds": 0.0},
        {"pears": 4},
        {"pairs": "4"},
        {"pairs": True},
        {"devices": "cpu:0"},
        {"sequential": 1},
        {"faster_than": "1.2"},
        {"max_foreign_load": None},
        {"max_foreign_load": float("nan")},
        {"request_seconds": float("nan")},
        {"wait_seconds": float("inf")},
        {"not_slower": 0.6},
    ],
)
def test_what_does_not_fit_is_refused(values: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="LG1003"):
        make_timing(values)


def test_rules_and_amounts() -> None:
    assert (Timing().rule, Timing().asked_gain) == ("faster", 0.0)
    assert Timing(faster_than=1.25).asked_gain == pytest.approx(0.25)
    assert (Timing(not_slower=0.02).rule, Timing(not_slower=0.02).margin) == ("not-slower", 0.02)


def test_a_timing_survives_json() -> None:
    timing = Timing(pairs=3, devices=("cpu:0", "cpu:1"), faster_than=1.2, noise_root=Path("/some/where"))
    assert timing_from_json(timing_to_json(timing)) == timing


def test_a_configuration_has_a_table_of_timing() -> None:
    base = {"model": "m", "systems": {"stock": {"engine": "transformers"}}}
    table = {"pairs": 4, "devices": ["cpu:0", "cpu:1"]}
    assert config_from_mapping({**base, "timing": table}).timing == table
    with pytest.raises(UsageError, match="LG0603"):
        config_from_mapping({**base, "timing": {"pears": 4}})
    with pytest.raises(UsageError, match="LG0603"):
        config_from_mapping({**base, "timing": 3})
