"""The page of faults: current, and a row for each of them."""

from __future__ import annotations

import pytest

from lossguard_suites.adversarial.faults import FAULTS
from tools.fault_table import PLACE, main, page


def test_the_page_is_current() -> None:
    assert PLACE.read_text(encoding="utf-8") == page(), "run: python tools/fault_table.py --write"
    assert main(["--check"]) == 0


def test_every_fault_has_one_row() -> None:
    rows = [line for line in page().splitlines() if line.startswith("| ")]
    for item in FAULTS:
        assert sum(line.startswith(f"| {item.code} | `{item.name}` |") for line in rows) == 1


def test_tables_are_well_formed() -> None:
    columns = {line.count("|") for line in page().splitlines() if line.startswith("| F")}
    assert columns == {9, 7, 6}


def test_without_a_choice_the_page_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    assert capsys.readouterr().out == page()
