"""The code blocks of README and docs, as markdown itself sees them, with what a comment before them says.

``<!-- not run: REASON -->`` right before a block: its commands are parsed, and not run. ``<!-- exit: 1 -->``: that is
what its last command must return.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, cast

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).resolve().parents[2]
PAGES = tuple(sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")]))
COMMANDS = frozenset({"lossguard", "make", "pip", "pytest", "python", "python3"}) | frozenset(
    {".", "cd", "cp", "export", "git", "mv", "sed"}  # whose words are not looked at
)
NOTE = re.compile(r"<!--\s*(not run|exit):\s*(.+?)\s*-->")
FILE_NAME = re.compile(r"^# ([\w./-]+\.(?:py|toml|txt))\b")
MARKDOWN = MarkdownIt("commonmark").enable("table")

Kind = Literal["console", "python", "toml", "json", "yaml", "text", "directive"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One block of one page. ``line`` counts from 1 and is where it begins."""

    page: str
    line: int
    kind: Kind
    text: str
    notes: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """For a test's id."""
        return f"{self.page}:{self.line}"

    @property
    def file_name(self) -> str | None:
        """The file that the block's first line says it is, such as ``# lossguard.toml``."""
        found = FILE_NAME.match(self.text)
        return found[1] if found else None

    @property
    def is_run(self) -> bool:
        """Whether nothing says that it cannot be run here."""
        return "not run" not in self.notes


def blocks_of(path: Path) -> list[Block]:
    """Every code block of a markdown file, in order."""
    page = str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else path.name
    return list(_blocks(MARKDOWN.parse(path.read_text(encoding="utf-8")), page))


def all_blocks() -> list[Block]:
    """Of every page."""
    return [block for path in PAGES for block in blocks_of(path)]


def _blocks(tokens: list[Token], page: str) -> Iterator[Block]:
    notes: dict[str, str] = {}
    for token in tokens:
        if token.type == "html_block":
            notes |= {name: value for name, value in NOTE.findall(token.content)}
        elif token.type in ("fence", "code_block"):
            kind = kind_of(token.info.strip(), token.content)
            yield Block(page=page, line=(token.map or [0])[0] + 1, kind=kind, text=token.content, notes=notes)
            notes = {}
        else:
            notes = {}


def kind_of(language: str, text: str) -> Kind:
    """By its language; a block without one is commands if it begins with one, or shows a prompt."""
    if language.startswith("{"):
        return "directive"
    if language in ("console", "python", "toml", "json", "yaml", "text"):
        return cast(Kind, language)
    if language:
        raise ValueError(f"no test knows what to do with a block of {language!r}")
    first = re.sub(r"^([A-Z_]+=\S* )*", "", text.removeprefix("$ ")).split(maxsplit=2)
    is_output = len(first) > 1 and first[1].endswith(":")  # lossguard w12: 145 layers, ...
    is_command = (bool(first) and first[0] in COMMANDS and not is_output) or prompted(text)
    return "console" if is_command else "text"


def prompted(text: str) -> bool:
    """Whether commands are marked by a prompt, so that other lines are what they print or read."""
    return any(line.startswith("$ ") for line in text.splitlines())
