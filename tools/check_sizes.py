"""Sizes, file names, broad excepts and words that must not leak. Prints every breach; exit code 1 if there is one."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PLACES = (
    ".ci", "benchmarks", "docs", "examples", "fixtures", "kernels", "lossguard", "mechanisms", "requirements", "suites",
    "tests", "tools",
)  # fmt: skip
TEXT_SUFFIXES = frozenset({"", ".cfg", ".ini", ".json", ".jsonl", ".md", ".py", ".sh", ".toml", ".txt", ".yml"})
VAGUE_NAMES = frozenset({"common.py", "helpers.py", "misc.py", "utils.py"})
BROAD = frozenset({"BaseException", "Exception"})

# In pieces, so that this file does not hold what it looks for.
LEAKS = re.compile(
    "|".join(
        (
            r"(?<![\w.])/(?:" + "wor" + "k|" + "far" + "m)/",
            "/tm" + r"p/v\b",
            "pythonhost" + "ed",
            "pypi" + r"\.org",
            "registry" + r"\.npmjs",
            "deb" + r"\.debian",
            r"\.libr" + "ary/",
            r"\bsub" + r"agents?\b",
        )
    ),
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Numbers of lines that a file and a function may have."""

    file: int
    function: int


LIMITS = Limits(file=500, function=60)
KERNEL_LIMITS = Limits(file=700, function=120)


def text_files(root: Path) -> Iterator[Path]:
    """Text files of the repository: those at its root and those in ``PLACES``."""
    candidates = [*root.iterdir(), *(path for place in PLACES for path in (root / place).rglob("*"))]
    for path in sorted(candidates):
        if path.is_file() and path.suffix in TEXT_SUFFIXES and "__pycache__" not in path.parts:
            yield path


def breaches(path: Path, name: str) -> Iterator[str]:
    """What is wrong with one file; ``name`` is its path from the root, with slashes."""
    text = path.read_text(encoding="utf-8")
    for number, line in enumerate(text.splitlines(), 1):
        if LEAKS.search(line):
            yield f"{name}:{number}: a path of a build machine or the name of a host: {line.strip()[:80]}"
    if path.suffix != ".py":
        return
    limits = KERNEL_LIMITS if name.startswith("kernels/") else LIMITS
    num_lines = text.count("\n")
    if num_lines > limits.file:
        yield f"{name}: {num_lines} lines, {limits.file} are allowed"
    if path.name in VAGUE_NAMES:
        yield f"{name}: name the file after its one idea"
    yield from _breaches_of_syntax(text, name, limits)


def _breaches_of_syntax(text: str, name: str, limits: Limits) -> Iterator[str]:
    lines = text.splitlines()
    for node in ast.walk(ast.parse(text, filename=name)):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            num_lines = (node.end_lineno or node.lineno) - node.lineno + 1
            if num_lines > limits.function:
                yield f"{name}:{node.lineno}: {node.name} has {num_lines} lines, {limits.function} are allowed"
        elif isinstance(node, ast.ExceptHandler) and _is_broad(node.type) and not _is_boundary(node, lines):
            yield f"{name}:{node.lineno}: an except that catches everything; name the errors"


def _is_broad(caught: ast.expr | None) -> bool:
    if caught is None:
        return True
    if isinstance(caught, ast.Tuple):
        return any(_is_broad(item) for item in caught.elts)
    return isinstance(caught, ast.Name) and caught.id in BROAD


def _is_boundary(handler: ast.ExceptHandler, lines: list[str]) -> bool:
    """Foreign code may raise anything: such a place says so, and raises an error of ours in its stead."""
    return "# boundary: " in lines[handler.lineno - 1] and any(isinstance(node, ast.Raise) for node in handler.body)


def main(root: Path) -> int:
    """Check the repository at ``root``. Returns the exit code."""
    files = list(text_files(root))
    found = [breach for path in files for breach in breaches(path, path.relative_to(root).as_posix())]
    print("\n".join((*found, f"sizes: {len(files)} files, {len(found)} breaches")))
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(Path(__file__).resolve().parent.parent))
