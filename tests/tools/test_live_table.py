"""The page of the live selftest: what counts as met, what a diagnosis counts as, and the page's markers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tools.live_table import END, START, main, read_reports, tables

PAGE = Path(__file__).parents[2] / "docs" / "live-selftest.md"


def claim(name: str, verdict: str, *failed: str, family: str | None = None) -> dict[str, Any]:
    events = {"num_audited_positions": 7, "num_explained_positions": 2} if "event" in failed else {}
    checks = [
        {
            "check": check,
            "verdict": "FAIL" if check in failed else "PASS",
            "evidence": events if check == "event" else {},
        }
        for check in ("rate", "event", "structure")
    ]
    arms = {"candidate": 9, "stock": 3}
    sizes = {f"num_tokens_{arm}": 1000 for arm in arms} | {f"num_mismatches_{arm}": arms[arm] for arm in arms}
    told = {} if family is None else {"diagnosis": {"family": family}}
    return {"candidate": name, "verdict": verdict, "checks": checks, "sizes": sizes, **told}


def reports(folder: Path, *claims: dict[str, Any]) -> Path:
    (folder / "run-0001-report.json").write_text(json.dumps({"claims": claims}), encoding="utf-8")
    return folder


def test_a_row_for_each_system(tmp_path: Path) -> None:
    found = reports(
        tmp_path,
        claim("kept-drafts", "FAIL", "event", family="unknown"),
        claim("cut-replies", "FAIL", "structure", family="EOS"),
        claim("lost-splits", "FAIL", "rate", family="bias"),
        claim("noisy-cache", "FAIL", "structure", family="position threshold"),
        claim("eager", "PASS"),
        claim("float32", "FAIL", "rate", family="unknown"),
    )
    text = tables(read_reports(found))
    assert "3 of 4 faults FAIL by a check that is named for them, 1 of 2 controls PASS" in text
    assert "2 right, 1 unknown where a family fits, 1 wrong" in text
    assert "| `kept-drafts` | FAIL | event | 0.90 | 0.30 | 5 / 7 | state after rejection | unknown (unknown) |" in text
    assert "| `noisy-cache` | **FAIL** | structure |" in text
    assert "| `eager` | PASS | none | 0.90 | 0.30 | 0 / 0 |" in text
    assert "| `float32` | **FAIL** | rate |" in text
    assert "wrong-token" in text.partition("Not judged: ")[2].splitlines()[0]


def test_only_what_is_between_the_markers_changes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(f"before\n{START}\nof another run\n{END}\nafter\n", encoding="utf-8")
    main([str(reports(tmp_path, claim("eager", "PASS"))), "--write", str(page)])
    text = page.read_text(encoding="utf-8")
    assert text.startswith(f"before\n{START}\n")
    assert text.endswith(f"{END}\nafter\n")
    assert "of another run" not in text


def test_without_reports_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="no report"):
        read_reports(tmp_path)


def test_the_page_in_the_docs_has_its_markers() -> None:
    text = PAGE.read_text(encoding="utf-8")
    assert text.count(START) == text.count(END) == 1
