"""The interactive pictures: numbers and harmless names only, and an error where they cannot be made."""

from __future__ import annotations

import json
import re
import sys
from types import ModuleType
from typing import Any

import pytest

from lossguard.errors import UsageError
from lossguard.report.interactive import render_interactive
from tests.report.sample import judged, renamed, report_of, timed
from tests.report.test_html import HOSTILE

FAULTY = judged("faulty", [(at, 10 + at % 30) for at in range(40)], lambda *_ids: HOSTILE)


@pytest.fixture
def specifications(monkeypatch: pytest.MonkeyPatch) -> list[dict[str, Any]]:
    """What the renderer is given: tests need not install it."""
    given: list[dict[str, Any]] = []
    module = ModuleType("vl_convert")

    def to_html(spec: dict[str, Any], *, bundle: bool) -> str:
        given.append(spec)
        return f"page {bundle}"

    vars(module)["vegalite_to_html"] = to_html
    monkeypatch.setitem(sys.modules, "vl_convert", module)
    monkeypatch.setattr("lossguard.report.interactive.importlib.util.find_spec", lambda name: name == "vl_convert")
    return given


def test_every_claim_has_its_pictures_worst_first(specifications: list[dict[str, Any]]) -> None:
    report = report_of([timed("fine"), renamed(judged(), "fine"), FAULTY])
    assert render_interactive(report) == "page True"
    titles = [view["title"] for view in specifications[0]["vconcat"]]
    assert titles == [
        "NOT LOSSLESS  faulty against stock: gaps",
        "NOT LOSSLESS  faulty against stock: mismatch rate by position",
        "NOT LOSSLESS  faulty against stock: events",
        "NOT LOSSLESS  faulty against stock: what the run could have seen",
        "FASTER  fine against stock: swap pairs",
        "LOSSLESS  fine against stock: gaps",
        "LOSSLESS  fine against stock: mismatch rate by position",
        "LOSSLESS  fine against stock: what the run could have seen",
    ]
    zooms = [view["params"][0]["name"] for view in specifications[0]["vconcat"] if "params" in view]
    assert len(zooms) == len(set(zooms)) == 1


def test_no_served_text_and_no_markup_gets_in(specifications: list[dict[str, Any]]) -> None:
    render_interactive(report_of([renamed(FAULTY, "</script><script>alert(1)</script>")]))
    text = json.dumps(specifications)
    assert not re.search(r"[<>&\\]", text)
    assert "onerror" not in text


def test_a_report_without_numbers_is_an_error(specifications: list[dict[str, Any]]) -> None:
    report = report_of([FAULTY])
    del report["claims"][0]["figures"]
    with pytest.raises(UsageError, match="LG1806"):
        render_interactive(report)
    assert specifications == []


def test_without_the_renderer_there_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lossguard.report.interactive.importlib.util.find_spec", lambda _name: None)
    with pytest.raises(UsageError, match=r"lossguard\[interactive\]"):
        render_interactive(report_of([FAULTY]))
