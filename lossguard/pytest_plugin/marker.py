"""``@pytest.mark.lossguard(...)`` as a frozen value, read when tests are collected and not when they run."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest

import lossguard_pytest
from lossguard.errors import near_miss
from lossguard.pytest_plugin.problems import bad_marker, claim_twice, no_marker, reruns_refused

TEXTS = ("claim", "candidate", "budget", "baseline")
COUNTS = ("repeats", "gpus")
TEMPERATURE = "temperature"
ARGUMENTS = (*TEXTS, *COUNTS, TEMPERATURE)
MAX_COUNT = 1_000
MAX_TEMPERATURE = 10.0
CLAIM = re.compile(r"[A-Za-z0-9][A-Za-z0-9._/@=+-]*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimMark:
    """A claim as its author wrote it down. None: the session's option decides.

    ``repeats`` replies are served per prompt; ``gpus`` devices are needed in the process that judges (0: any number).
    """

    claim: str
    candidate: str | None = None
    budget: str | None = None
    baseline: str | None = None
    repeats: int = 1
    gpus: int = 0
    temperature: float | None = None


MARK_KEY = pytest.StashKey[ClaimMark]()


def read_marks(items: Sequence[pytest.Item]) -> dict[str, ClaimMark]:
    """Parse the markers of all items, keep each in its item's stash, and return them by node id.

    Raises UsageError LG0801 (arguments), LG0802 (a claim made twice), LG0808 (reruns), LG0811 (no marker).
    """
    marks: dict[str, ClaimMark] = {}
    owners: dict[str, str] = {}
    for item in items:
        mark = parse_mark(item)
        if mark is None:
            continue
        if mark.claim in owners:
            raise claim_twice(mark.claim, owners[mark.claim], item.nodeid)
        if _num_reruns(item) > 0:
            raise reruns_refused(mark.claim, item.nodeid)
        owners[mark.claim] = item.nodeid
        marks[item.nodeid] = item.stash[MARK_KEY] = mark
    return marks


def parse_mark(item: pytest.Item) -> ClaimMark | None:
    """The claim of one item; a mark on a class or module fills in what the test's own mark leaves open."""
    merged: dict[str, Any] = {}
    found = list(item.iter_markers(lossguard_pytest.MARKER))
    for mark in found:
        _check_arguments(item.nodeid, mark)
        given = {name: value for name, value in mark.kwargs.items() if value is not None}
        merged = {**given, **merged}
    if not found:
        if "lossguard" in getattr(item, "fixturenames", ()):
            raise no_marker(item.nodeid)
        return None
    if "claim" not in merged:
        raise bad_marker(item.nodeid, "the marker has no claim=")
    return ClaimMark(**merged)


def _check_arguments(where: str, mark: pytest.Mark) -> None:
    if mark.args:
        raise bad_marker(where, f"the marker takes no positional arguments, found {mark.args!r}; write claim=...")
    for name, value in mark.kwargs.items():
        if name not in ARGUMENTS:
            raise bad_marker(where, f"the marker has no argument {name!r}. {near_miss(name, ARGUMENTS)}")
        if name in TEXTS and value is not None and not isinstance(value, str):
            raise bad_marker(where, f"{name}= must be a string, found {value!r}")
        if name in COUNTS and value is not None and not _is_count(value):
            raise bad_marker(where, f"{name}= must be a whole number from 1 to {MAX_COUNT}, found {value!r}")
        if name == TEMPERATURE and value is not None and not _is_temperature(value):
            raise bad_marker(where, f"{name}= must be a number from 0 to {MAX_TEMPERATURE:g}, found {value!r}")
    claim, budget = mark.kwargs.get("claim"), mark.kwargs.get("budget")
    if claim is not None and not CLAIM.fullmatch(claim):
        raise bad_marker(where, f"the claim {claim!r} is no name; use letters, digits and . _ / @ = + -")
    if budget is not None and not _is_budget(budget):
        known = near_miss(budget, lossguard_pytest.BUDGET_NAMES)
        raise bad_marker(where, f"no budget is called {budget!r}. {known}")


def _is_count(value: object) -> bool:
    return type(value) is int and 1 <= value <= MAX_COUNT


def _is_temperature(value: object) -> bool:
    return type(value) in (int, float) and 0.0 <= float(str(value)) <= MAX_TEMPERATURE


def _is_budget(text: str) -> bool:
    return text in lossguard_pytest.BUDGET_NAMES or bool(lossguard_pytest.BUDGET_SIZES.fullmatch(text))


def _num_reruns(item: pytest.Item) -> int:
    """How often pytest-rerunfailures would run the test again."""
    plugin = item.config.pluginmanager.get_plugin("rerunfailures")
    if plugin is None:
        return 0
    return int(plugin.get_reruns_count(item) or 0)
