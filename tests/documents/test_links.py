"""Links of README and docs lead somewhere: files, and headings in them. Other hosts are not asked."""

from __future__ import annotations

import itertools
import re
from functools import cache
from pathlib import Path

import pytest
from markdown_it.token import Token

from tests.documents.blocks import MARKDOWN, PAGES, ROOT


def slug(heading: str) -> str:
    """The anchor that GitHub gives to a heading (and the site with it)."""
    return re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-")


@cache
def anchors(path: Path) -> frozenset[str]:
    """Of all headings of a page; the second of two equal ones gets -1."""
    tokens = MARKDOWN.parse(path.read_text(encoding="utf-8"))
    found: list[str] = []
    for heading, content in itertools.pairwise(tokens):
        if heading.type == "heading_open":
            plain = "".join(child.content for child in content.children or [] if child.type in ("text", "code_inline"))
            found.append(slug(plain))
    counts = {name: found[:index].count(name) for index, name in enumerate(found)}
    return frozenset(found) | {f"{name}-{count}" for name, count in counts.items() if count}


def links(path: Path) -> list[str]:
    """Targets of links and pictures within this repository."""
    tokens = [child for token in MARKDOWN.parse(path.read_text(encoding="utf-8")) for child in token.children or []]
    targets = [target for token in tokens if (target := _target(token))]
    return [target for target in targets if not re.match(r"[a-z]+:", target)]


def _target(token: Token) -> str:
    return str(token.attrGet("href") or token.attrGet("src") or "")


def problem(path: Path, target: str) -> str | None:
    """What is wrong with a link."""
    name, _, anchor = target.partition("#")
    place = (path.parent / name).resolve() if name else path
    if not place.exists():
        return f"{target}: no such file"
    if not place.is_relative_to(ROOT):
        return f"{target}: outside the repository"
    if anchor and anchor not in anchors(place):
        return f"{target}: no such heading"
    return None


@pytest.mark.parametrize("path", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_somewhere(path: Path) -> None:
    assert [found for target in links(path) if (found := problem(path, target))] == []


def test_broken_links_are_noticed(tmp_path: Path) -> None:
    page = ROOT / "docs" / "exit-codes.md"
    assert problem(page, "no-such-page.md") == "no-such-page.md: no such file"
    assert problem(page, "pytest.md#no-such-heading") == "pytest.md#no-such-heading: no such heading"
    assert problem(page, "../../outside.md") is not None
    assert problem(page, "pytest.md#exit-codes") is None
    assert slug("Servers: `sglang`, `vllm`".replace("`", "")) == "servers-sglang-vllm"


def test_headings_in_code_are_none(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("# One `x` two\n\n```toml\n# three\n```\n\n# One x two\n", encoding="utf-8")
    assert anchors(page) == {"one-x-two", "one-x-two-1"}
