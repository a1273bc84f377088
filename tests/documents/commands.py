"""Command lines of the documentation, held against the parsers of the programs that they call. Nothing is run."""

from __future__ import annotations

import argparse
import importlib.util
import re
import shlex
import tomllib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import typer

import lossguard_pytest
from lossguard.cli.main import build_app
from tests.documents.blocks import ROOT, Block, prompted

PLACEHOLDERS = {"N": "0"}  # a number that the reader knows
PYTEST_OWN = {  # options of pytest and its plugins that pages use; True: with a value
    "-k": True,
    "-m": True,
    "-n": True,
    "-q": False,
    "-s": False,
    "-x": False,
    "--junitxml": True,
    "--pyargs": False,
}


def commands_of(block: Block) -> list[list[str]]:
    """The commands of a console block as words, without comments, prompts and variables set in front."""
    text = block.text
    if prompted(text):
        text = "\n".join(line[2:] for line in text.splitlines() if line.startswith("$ "))
    lines = re.sub(r"\\\n\s*", "", text).splitlines()
    parts = [part for line in lines for part in _split(shlex.split(line, comments=True))]
    return [part for part in parts if part]


def _split(words: list[str]) -> list[list[str]]:
    parts: list[list[str]] = [[]]
    for word in words:
        if word == "&&":
            parts.append([])
        elif parts[-1] or not re.fullmatch(r"[A-Z_]+=.*", word):
            parts[-1].append(word)
    return parts


def check_command(words: list[str]) -> None:
    """Raise AssertionError, or what the program's own parser raises, if the command is none."""
    program, arguments = Path(words[0]).name, [PLACEHOLDERS.get(word, word) for word in words[1:]]
    if program in ("python", "python3"):
        _check_python(arguments)
    elif program in CHECKS:
        CHECKS[program](arguments)


def _check_lossguard(arguments: list[str]) -> None:
    """By the parser of the command itself: options, values, numbers of arguments."""
    command: Any = _application()
    while nested := getattr(command, "commands", None):
        assert arguments, f"lossguard {command.name}: a command is missing"
        assert arguments[0] in nested, f"lossguard has no command {arguments[0]!r}"
        command, arguments = nested[arguments[0]], arguments[1:]
    command.make_context(command.name, arguments)


@cache
def _application() -> Any:
    return typer.main.get_command(build_app())


class _Options:
    """Stands for pytest's parser: takes what a plugin adds, and gives it to argparse."""

    def __init__(self) -> None:
        self.parser = argparse.ArgumentParser(prog="pytest", exit_on_error=False, allow_abbrev=False)
        self.parser.add_argument("paths", nargs="*")
        for name, has_value in PYTEST_OWN.items():
            self.parser.add_argument(name, action="store" if has_value else "store_true")

    def getgroup(self, *_arguments: str) -> _Options:
        return self

    def addoption(self, *names: str, **settings: Any) -> None:
        self.parser.add_argument(*names, **settings)

    def addini(self, *_arguments: Any, **_settings: Any) -> None:
        """Settings are no options."""


def _check_pytest(arguments: list[str]) -> None:
    options: Any = _Options()
    lossguard_pytest.pytest_addoption(options)
    _, unknown = options.parser.parse_known_args(arguments)
    assert not unknown, f"pytest knows no {unknown}"


def _check_python(arguments: list[str]) -> None:
    """A module that exists and mentions every option; a script that exists; or venv and pip."""
    if arguments[0] == "-m" and arguments[1] == "pip":
        _check_pip(arguments[2:])
        return
    if arguments[0] != "-m":
        assert (ROOT / arguments[0].replace("../", "docs/examples/")).is_file(), f"no script {arguments[0]}"
        return
    source = "\n".join(path.read_text(encoding="utf-8") for path in _folder_of(arguments[1]).glob("*.py"))
    given = {word for word in arguments[2:] if word.startswith("--")}
    assert {word for word in given if f'"{word}"' not in source} == set(), f"{arguments[1]} has no such option"


def _folder_of(module: str) -> Path:
    """Where a module that can be run lies."""
    found = importlib.util.find_spec(module)
    assert found is not None, f"no module {module}"
    if found.origin is not None:
        return Path(found.origin).parent
    folders = [Path(place) for place in found.submodule_search_locations or ()]
    runnable = [folder for folder in folders if (folder / "__main__.py").is_file()]
    assert runnable, f"{module} cannot be run"
    return runnable[0]


def _check_make(arguments: list[str]) -> None:
    targets = set(re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE))
    named = {word for word in arguments if "=" not in word and not word.startswith("-")}
    assert named <= targets, f"the Makefile has no {named - targets}"


def _check_pip(arguments: list[str]) -> None:
    extras = set(
        tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    )
    assert arguments[0] == "install"
    asked = {
        extra
        for word in arguments[1:]
        for found in re.findall(r"^(?:lossguard|\.)\[([\w,-]+)\]$", word)
        for extra in found.split(",")
    }
    assert asked <= extras, f"lossguard has no extra {asked - extras}"


CHECKS: dict[str, Callable[[list[str]], None]] = {
    "lossguard": _check_lossguard,
    "make": _check_make,
    "pip": _check_pip,
    "pytest": _check_pytest,
}
