"""The documentation site: every page has its place in it, and pages made from code are current."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import lossguard
from tests.documents.blocks import ROOT, blocks_of
from tools import cli_reference

DOCS = ROOT / "docs"
SCHEMAS = ("report-1", "session-1")


def toctree_entries(page: Path) -> list[str]:
    """Pages that a page's toctrees name, by their path from docs; globs are expanded."""
    lines = [
        line
        for block in blocks_of(page)
        if block.kind == "directive"
        for line in block.text.splitlines()
        if line and not line.startswith(":")
    ]
    return [str(found.relative_to(DOCS).with_suffix("")) for line in lines for found in sorted(DOCS.glob(f"{line}.md"))]


def test_every_page_is_in_the_navigation_once() -> None:
    pages = {str(path.relative_to(DOCS).with_suffix("")) for path in DOCS.rglob("*.md")} - {"index"}
    entries = toctree_entries(DOCS / "index.md") + toctree_entries(DOCS / "errors.md")
    assert sorted(entries) == sorted(set(entries))
    assert set(entries) == pages


def test_the_page_of_commands_is_current() -> None:
    """``python -m tools.cli_reference --write`` makes it."""
    assert cli_reference.main(["--check"]) == 0


def test_the_page_of_commands_has_every_command_and_option() -> None:
    page = cli_reference.page()
    assert "## lossguard check" in page
    assert "## lossguard lattice replay" in page
    assert "| `--not-slower` |" in page


def test_the_api_page_has_every_public_name() -> None:
    text = (DOCS / "api.md").read_text(encoding="utf-8")
    named = set(re.findall(r"auto(?:class|function):: ([\w.]+)", text))
    assert set(lossguard.__all__) - {"systems"} <= named
    assert "lossguard.systems.from_callable" in named


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_page_has_every_key(name: str) -> None:
    text = (DOCS / "report-schema.md").read_text(encoding="utf-8")
    place = ROOT / "lossguard" / "report" / "schema" / f"{name}.json"
    keys = json.loads(place.read_text(encoding="utf-8"))["properties"]
    assert {key for key in keys if f"`{key}`" not in text} == set()
