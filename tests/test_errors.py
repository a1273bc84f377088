"""Errors have four parts, and every code stands for one thing that docs/errors/ explains."""

from __future__ import annotations

import ast
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from lossguard.errors import (
    BaselineError,
    EngineError,
    IntegrityError,
    LossguardError,
    ScorerError,
    StorageError,
    UsageError,
    near_miss,
)

ROOT = Path(__file__).resolve().parent.parent
CODE = ("lossguard", "kernels", "mechanisms", "suites", "benchmarks", "fixtures")
SOURCES = tuple(path for place in CODE for path in sorted((ROOT / place).rglob("*.py")))
PAGES = tuple(sorted((ROOT / "docs" / "errors").glob("*.md")))
LITERAL = re.compile(r"""["'](LG\d{4})["']""")
ANY_CODE = re.compile(r"LG\d{4}")
HEADING = re.compile(r"^## (LG\d{4}) (\S.*)$", re.MULTILINE)
SECTION = re.compile(r"^## (LG\d{4}) [^\n]*\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)

RAISED = {path: set(LITERAL.findall(path.read_text(encoding="utf-8"))) for path in SOURCES}
HEADINGS = [found for page in PAGES for found in HEADING.findall(page.read_text(encoding="utf-8"))]


@pytest.mark.parametrize(
    ("kind", "exit_code"),
    [
        (LossguardError, 3),
        (UsageError, 4),
        (BaselineError, 4),
        (EngineError, 3),
        (ScorerError, 3),
        (IntegrityError, 3),
        (StorageError, 3),
    ],
)
def test_an_error_shows_its_four_parts_in_order(kind: type[LossguardError], exit_code: int) -> None:
    error = kind("the disk is full", why="results would be lost", fix="make room", code="LG9999")
    assert str(error).splitlines() == [
        "the disk is full",
        "  why it matters: results would be lost",
        "  what to do: make room",
        "  reference: LG9999 (docs/errors.md)",
    ]
    assert kind.exit_code == exit_code


def test_near_miss_names_the_closest_and_all_known() -> None:
    assert near_miss("stok", ["w12", "stock"]) == "Did you mean 'stock'? Known: 'stock', 'w12'."
    assert near_miss("x", []) == "Known: none."


def test_every_raised_code_is_explained() -> None:
    raised = set().union(*RAISED.values())
    assert raised, "no code was found: the pattern no longer fits the source"
    assert raised - {code for code, _ in HEADINGS} == set()


def test_docstrings_name_only_codes_that_are_raised() -> None:
    named = {path: set(ANY_CODE.findall(path.read_text(encoding="utf-8"))) for path in SOURCES}
    raised = set().union(*RAISED.values())
    assert {path.name: codes - raised for path, codes in named.items() if codes - raised} == {}


def test_no_code_is_explained_twice_or_in_vain() -> None:
    counts = Counter(code for code, _ in HEADINGS)
    assert [code for code, count in counts.items() if count > 1] == []
    assert set(counts) - set().union(*RAISED.values()) == set()


def test_a_code_means_the_same_in_every_file() -> None:
    """A code may be raised by several files only as the same kind of error and for the same reason."""
    meanings: dict[str, dict[str, set[str]]] = defaultdict(dict)
    for path in SOURCES:
        for code, meaning in meanings_in(path):
            meanings[code].setdefault(meaning, set()).add(path.name)
    conflicts = {
        code: found for code, found in meanings.items() if len(found) > 1 and len(set().union(*found.values())) > 1
    }
    assert conflicts == {}


def meanings_in(path: Path) -> Iterator[tuple[str, str]]:
    """Code and meaning (kind and reason) of every error that a file makes."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call):
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            code = given.get("code")
            if isinstance(code, ast.Constant) and ANY_CODE.fullmatch(str(code.value)) and "why" in given:
                yield str(code.value), f"{ast.unparse(node.func)}: {ast.unparse(given['why'])}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_explanation_says_something(page: Path) -> None:
    sections = SECTION.findall(page.read_text(encoding="utf-8"))
    assert len(sections) == len(HEADING.findall(page.read_text(encoding="utf-8")))
    assert [code for code, text in sections if len(text.split()) < 8] == []


def test_the_index_links_every_page() -> None:
    index = (ROOT / "docs" / "errors.md").read_text(encoding="utf-8")
    assert PAGES
    assert [page.name for page in PAGES if f"errors/{page.name}" not in index] == []
