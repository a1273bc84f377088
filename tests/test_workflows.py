"""The files of docs/ci: what they run exists here. Their syntax is checked by actionlint (make workflows)."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

import lossguard_pytest
from lossguard.cli.main import build_app

FOLDER = Path(__file__).resolve().parent.parent / "docs" / "ci"
FILES = sorted(FOLDER.glob("*.yml"))
OPTION = re.compile(r"--[a-z][a-z-]*")


def scripts(value: Any, key: str = "") -> list[str]:
    """Every shell text of a workflow."""
    if isinstance(value, dict):
        return [text for name, item in value.items() for text in scripts(item, name)]
    if isinstance(value, list):
        return [text for item in value for text in scripts(item, key)]
    return [str(value)] if key in ("run", "script", "before_script", "after_script") else []


def commands() -> list[list[str]]:
    """The lossguard and pytest commands of all files, as words."""
    texts = [text for path in FILES for text in scripts(yaml.safe_load(path.read_text(encoding="utf-8")))]
    parts = [part for text in texts for part in re.split(r"\bdo |;|&&|\n", text)]
    words = [shlex.split(part) for part in parts if part.strip()]
    return [found for found in words if found and found[0] in ("lossguard", "pytest")]


def test_the_files_run_lossguard() -> None:
    assert len(FILES) == 4
    assert {tuple(words[:2]) for words in commands() if words[0] == "lossguard"} == {
        ("lossguard", "check"),
        ("lossguard", "report"),
    }
    assert any(words[0] == "pytest" for words in commands())


@pytest.mark.parametrize("words", commands(), ids=lambda words: " ".join(words[:2]))
def test_every_option_exists(words: list[str]) -> None:
    given = {found[0] for word in words[1:] if (found := OPTION.match(word))}
    assert given
    if words[0] == "pytest":
        known = {f"--lossguard-{name}" for name, *_ in lossguard_pytest.OPTIONS} | {"--junitxml"}
    else:
        command = typer.main.get_command(build_app()).commands[words[1]]  # type: ignore[attr-defined]
        known = {name for parameter in command.params for name in parameter.opts}
    assert given <= known


def test_an_output_that_a_workflow_reads_is_one_that_is_written() -> None:
    from lossguard.report.github import outputs

    read = set(re.findall(r"steps\.check\.outputs\.([\w-]+)", (FOLDER / "lossguard.yml").read_text(encoding="utf-8")))
    outcome = {"verdict": "PASS", "exit_code": 0}
    assert read
    assert read <= set(outputs({"outcome": outcome}, json_path="r.json", html_path="r.html"))
