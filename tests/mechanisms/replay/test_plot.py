"""The plot shows every policy that was replayed, and the same numbers give the same bytes."""

from __future__ import annotations

import re

from lossguard_mechanisms.replay.comparison import Comparison, compare
from lossguard_mechanisms.replay.plot import render_plot
from tests.mechanisms.replay.toy_recordings import recording


def comparison(*, seed: int = 0) -> Comparison:
    toy = recording([9, 12, 8, 15], seed=seed, sets=["chat", "math", "chat", "math"])
    return compare("toy", toy, [], [2, 4, 8])


def test_the_same_numbers_give_the_same_bytes() -> None:
    assert render_plot([comparison()]) == render_plot([comparison()])
    assert render_plot([comparison()]) != render_plot([comparison(seed=1)])


def test_every_set_has_a_panel_and_every_policy_a_line() -> None:
    text = render_plot([comparison()])
    words = re.findall(r">([^<>]+)</text>", text)
    assert {"toy: all", "toy: chat", "toy: math"} <= set(words)
    for name in ("chain", "ddtree", "best-first", "eagle-2", "static", "oracle, 4 ahead"):
        assert words.count(name) == 1
    assert all(words.count(budget) >= 3 for budget in ("2", "4", "8"))  # a tick in every panel


def test_recordings_without_any_step_can_be_drawn() -> None:
    assert "no steps" in render_plot([compare("toy", recording([1, 1]), [], [4])])
