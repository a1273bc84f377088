"""Places where the pages' commands and code run: the toy project of docs/examples, or a checkout's own fixtures."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.documents.blocks import ROOT, Block

TIMEOUT_S = 240
OWN_FOLDERS = os.pathsep.join(str(ROOT / place) for place in (".", "suites", "mechanisms", "kernels"))
PROGRAMS = {  # -P: as installed programs, they do not look for modules in the current folder
    "lossguard": '-P -c "from lossguard.cli.main import main; main()"',
    "pytest": "-P -m pytest -p lossguard_pytest",
    "python": "",
}
SCRIPT = """#!/bin/sh
PYTHONPATH="${{PYTHONPATH:+$PYTHONPATH:}}{folders}" exec "{python}" {arguments} "$@"
"""
MY_LIBRARY = """
from types import SimpleNamespace

from toylm import lookup as generate

engine = SimpleNamespace(generate=generate)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A folder in which a page's blocks run one after another, as its reader would run them."""

    folder: Path
    programs: Path

    def take(self, block: Block) -> None:
        """Write a block that says of which file it is."""
        assert block.file_name is not None
        place = self.folder / block.file_name
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(block.text, encoding="utf-8")

    def run(self, block: Block) -> str:
        """Run the commands of a block by bash and return what they print. AssertionError for another exit code."""
        text = "".join(line.removeprefix("$ ") for line in block.text.splitlines(keepends=True))
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", text],
            cwd=self.folder,
            env=self._environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
        expected = int(block.notes.get("exit", "0"))
        assert done.returncode == expected, f"{block.name}: exit {done.returncode}, not {expected}\n{done.stdout}"
        return done.stdout

    def _environment(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTEST", "LOSSGUARD_B"))}
        return {
            **kept,
            "PATH": os.pathsep.join((str(self.programs), os.environ["PATH"])),
            "PYTHONPATH": "",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            "CI": "",
            "COLUMNS": "120",
        }


def toy_project(place: Path) -> World:
    """A copy of docs/examples/mechanism with its model, its prompts, and a library of the reader's."""
    folder = place / "toylm"
    shutil.copytree(
        ROOT / "docs" / "examples" / "mechanism", folder, ignore=shutil.ignore_patterns("model", "*.jsonl", ".*")
    )
    (folder / "my_library.py").write_text(MY_LIBRARY, encoding="utf-8")
    world = World(folder=folder, programs=_programs(place))
    made = Block(
        page="(setup)", line=0, kind="console", text='python -c "import conftest; conftest.pytest_configure()"'
    )
    world.run(made)
    return world


def checkout(place: Path) -> World:
    """A folder with this repository's fixtures."""
    folder = place / "checkout"
    folder.mkdir()
    (folder / "fixtures").symlink_to(ROOT / "fixtures")
    return World(folder=folder, programs=_programs(place))


def _programs(place: Path) -> Path:
    folder = place / "programs"
    folder.mkdir()
    for name, arguments in PROGRAMS.items():
        script = folder / name
        text = SCRIPT.format(folders=OWN_FOLDERS, python=sys.executable, arguments=arguments)
        script.write_text(text, encoding="utf-8")
        script.chmod(0o755)
    return folder


def require_shown(shown: Block, printed: str) -> None:
    """Every line of a text block is printed, in order; ``...`` stands for anything, also for lines."""
    lines = [line.rstrip() for line in printed.splitlines()]
    position = 0
    for line in shown.text.splitlines():
        if line.strip() in ("", "..."):
            continue
        pattern = re.compile(".*".join(map(re.escape, line.rstrip().split("..."))))
        found = next((index for index in range(position, len(lines)) if pattern.fullmatch(lines[index])), None)
        assert found is not None, f"{shown.name} shows {line!r}, which is not printed (there):\n{printed}"
        position = found + 1
