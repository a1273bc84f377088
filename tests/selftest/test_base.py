from __future__ import annotations

import math

import pytest

from lossguard.records import Verdict
from lossguard.selftest.base import SelftestPart, SelftestResult, Table, render


def part(verdict: Verdict, **changes: object) -> SelftestPart:
    values: dict[str, object] = {
        "name": "losslessness-live",
        "verdict": verdict,
        "summary": "8 faults",
        "tables": (Table(title="faults", columns=("fault", "seen"), rows=(("cut", "yes"), ("bias", "no"))),),
        "problems": ("bias was not seen",) if verdict is Verdict.FAIL else (),
    }
    return SelftestPart(**{**values, **changes})  # type: ignore[arg-type]


def test_a_part_renders_its_verdict_problems_and_tables() -> None:
    assert render(part(Verdict.FAIL)).splitlines() == [
        "FAIL  losslessness-live: 8 faults",
        "  bias was not seen",
        "",
        "  faults",
        "  fault  seen",
        "  cut    yes",
        "  bias   no",
    ]


def test_the_worst_part_decides() -> None:
    red = SelftestResult(parts=(part(Verdict.PASS), part(Verdict.FAIL), part(Verdict.INCONCLUSIVE)))
    assert (red.verdict, red.exit_code) == (Verdict.FAIL, 1)
    unclear = SelftestResult(parts=(part(Verdict.PASS), part(Verdict.INCONCLUSIVE)))
    assert (unclear.verdict, unclear.exit_code) == (Verdict.INCONCLUSIVE, 10)
    assert SelftestResult(parts=(part(Verdict.PASS),)).exit_code == 0
    assert SelftestResult(parts=()).verdict is Verdict.INCONCLUSIVE, "nothing run proves nothing"


def test_json_is_plain_and_finite() -> None:
    data = SelftestResult(parts=(part(Verdict.PASS, evidence={"share": 0.5}),)).to_json()
    assert data["parts"][0]["verdict"] == "PASS"
    assert data["parts"][0]["tables"][0]["rows"] == [["cut", "yes"], ["bias", "no"]]
    with pytest.raises(ValueError, match="share"):
        part(Verdict.PASS, evidence={"share": math.nan}).to_json()
