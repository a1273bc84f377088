"""Every block of README and docs is valid: commands parse, configurations load, Python runs."""

from __future__ import annotations

import ast
import json
import tomllib
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from lossguard.config import config_from_mapping
from lossguard.engines.base import EngineSpec
from lossguard.engines.servers.options import read_options
from lossguard.engines.transformers_options import parse_options
from lossguard_mechanisms.engine.options import parse_options as parse_embedded_options
from tests.documents.blocks import ROOT, Block, all_blocks, blocks_of, kind_of
from tests.documents.commands import check_command, commands_of

SERVERS = ("sglang", "vllm", "llamacpp", "openai")
BLOCKS = all_blocks()


def named(kind: str) -> list[object]:
    """Parameters: every block of a kind, under its page and line."""
    return [pytest.param(block, id=block.name) for block in BLOCKS if block.kind == kind]


@pytest.mark.parametrize("block", named("console"))
def test_every_command_parses(block: Block) -> None:
    assert commands_of(block)
    for words in commands_of(block):
        check_command(words)


@pytest.mark.parametrize("block", named("toml"))
def test_every_configuration_loads(block: Block) -> None:
    """Whole configurations, whose options the engines take; parts of another file are TOML at least."""
    if block.file_name == "pyproject.toml":
        assert tomllib.loads(block.text)
        return
    config = config_from_mapping(tomllib.loads(block.text))
    assert "stock" in config.systems
    for system in config.systems.values():
        spec = EngineSpec(name=system.name, model_path=config.model, options=system.options)
        if system.engine == "transformers":
            parse_options(spec)
        elif system.engine == "embedded":
            parse_embedded_options(spec)
        elif system.engine in SERVERS:
            read_options(spec, model_dtype="bfloat16")
        else:
            assert system.engine == "callable" or ":" in system.engine


@pytest.mark.parametrize("block", named("python"))
def test_every_python_block_parses(block: Block) -> None:
    assert ast.parse(block.text).body


def test_every_data_block_parses() -> None:
    for block in BLOCKS:
        if block.kind in ("json", "yaml"):
            assert (json.loads if block.kind == "json" else yaml.safe_load)(block.text), block.name


def test_a_block_that_shows_output_holds_no_command() -> None:
    """Else a command in the wrong kind of block would go unparsed."""
    prompts = ("lossguard ", "pytest ", "pip install ", "make ")
    found = [
        f"{block.name}: {line}"
        for block in BLOCKS
        if block.kind == "text"
        for line in block.text.splitlines()
        if line.startswith(prompts) and not line.split()[1].endswith((":", ","))
    ]
    assert found == []


def test_a_block_that_is_not_run_says_why() -> None:
    reasons = {block.notes["not run"] for block in BLOCKS if not block.is_run}
    assert reasons
    assert all(len(reason.split()) > 1 for reason in reasons)


@pytest.mark.parametrize(
    "words",
    [
        ["lossguard", "check", "--no-such-option"],
        ["lossguard", "check", "--seed", "three"],
        ["lossguard", "no-such-command"],
        ["lossguard", "rejudge"],
        ["make", "no-such-target"],
        ["pip", "install", "lossguard[nothing]"],
        ["pytest", "--lossguard-no-such-option"],
        ["python", "-m", "tools.cli_reference", "--no-such-option"],
        ["python", "-m", "no_such_module"],
    ],
    ids=" ".join,
)
def test_a_command_that_does_not_exist_is_noticed(words: Sequence[str]) -> None:
    with pytest.raises(Exception):  # noqa: B017, PT011 - whatever the program's own parser raises
        check_command(list(words))


def test_blocks_are_found_with_their_notes(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        "# A\n\n<!-- not run: needs a GPU -->\n\n    lossguard doctor\n\ntext\n\n```python\nx = 1\n```\n\n"
        "<!-- exit: 1 -->\n\nbetween\n\n    $ pytest -q\n    1 failed\n\n    lossguard w12: 3 layers\n",
        encoding="utf-8",
    )
    first, second, third = blocks_of(page)
    assert (first.kind, first.is_run, first.line) == ("console", False, 5)
    assert (second.kind, second.is_run) == ("python", True)
    assert (third.kind, dict(third.notes)) == ("console", {})
    assert kind_of("", "lossguard w12: 3 layers\n") == "text"
    assert commands_of(third) == [["pytest", "-q"]]


def test_pages_have_blocks_of_every_kind() -> None:
    assert {"console", "python", "toml", "text", "directive"} <= {block.kind for block in BLOCKS}
    assert all((ROOT / block.page).is_file() for block in BLOCKS)
