from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree

import pytest

from lossguard.errors import UsageError
from lossguard.selftest.detection import RULES
from lossguard.selftest.plots import power_curves
from tests.selftest.test_recorded import curve

CURVES = [curve(system, rule, [0, 9, 20]) for system in ("bias", "cut") for rule in RULES]


def test_equal_curves_give_equal_bytes() -> None:
    pytest.importorskip("matplotlib")
    first = power_curves(CURVES)
    assert first == power_curves(CURVES)
    assert ElementTree.fromstring(first).tag.endswith("svg")
    assert "bias" in first
    assert "97 % match rate" in first


def test_without_matplotlib_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UsageError, match="LG0905"):
        power_curves(CURVES)
