"""What the documents say must be so: links, configurations, options."""

from __future__ import annotations

import ast
import dataclasses
import re
import tomllib
from pathlib import Path

import pytest

from lossguard.config import config_from_mapping, load_config
from lossguard.engines.base import EngineSpec
from lossguard.engines.servers.options import NAMES, read_options
from lossguard.engines.transformers_options import TransformersOptions, parse_options
from lossguard.gate_result import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_PASS, EXIT_USAGE
from lossguard.scoring.spec import TorchScorerSpec, spec_from_options
from lossguard_mechanisms.engine.options import parse_options as parse_embedded_options

ROOT = Path(__file__).resolve().parent.parent
DOCUMENTS = sorted([ROOT / "README.md", ROOT / "CHANGELOG.md", *(ROOT / "docs").rglob("*.md")])
LINK = re.compile(r"\]\((?!https?:|#)([^)#]+)(?:#[^)]*)?\)")
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVERS = ("sglang", "vllm", "llamacpp", "openai")
BLOCKS = [
    (f"{path.relative_to(ROOT)}-{number}", language, text)
    for path in DOCUMENTS
    for number, (language, text) in enumerate(FENCE.findall(path.read_text(encoding="utf-8")))
]


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_link_leads_to_a_file(path: Path) -> None:
    targets = LINK.findall(path.read_text(encoding="utf-8"))
    assert [target for target in targets if not (path.parent / target).exists()] == []


@pytest.mark.parametrize(("language", "text"), [block[1:] for block in BLOCKS], ids=[block[0] for block in BLOCKS])
def test_every_code_block_is_valid(language: str, text: str) -> None:
    """TOML blocks are whole configurations whose options the engines take; Python blocks parse."""
    assert language in ("python", "toml")
    if language == "python":
        assert ast.parse(text).body
        return
    config = config_from_mapping(tomllib.loads(text))
    assert {"stock"} <= set(config.systems)
    for system in config.systems.values():
        spec = EngineSpec(name=system.name, model_path=config.model, options=system.options)
        if system.engine == "transformers":
            parse_options(spec)
        elif system.engine == "embedded":
            parse_embedded_options(spec)
        else:
            assert system.engine in SERVERS
            read_options(spec, model_dtype="bfloat16")


def test_every_option_of_a_server_is_documented() -> None:
    text = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    section = text.partition("## Servers")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(NAMES) <= documented
    assert documented <= set(NAMES) | set(SERVERS)


def test_the_readme_has_code_blocks_and_stays_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {language for language, _ in FENCE.findall(text)} == {"python", "toml"}
    assert len(text.splitlines()) < 150


def test_this_repository_has_a_configuration_that_fits() -> None:
    config = load_config(ROOT / "lossguard.toml")
    assert "stock" in config.systems
    for system in config.systems.values():
        parse = parse_embedded_options if system.engine == "embedded" else parse_options
        parse(EngineSpec(name=system.name, model_path=config.model, options=system.options))
    spec_from_options(config.model, config.scorer.options)


def test_every_option_is_documented() -> None:
    engines = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    configuration = (ROOT / "docs" / "configuration.md").read_text(encoding="utf-8")
    options = {field.name for field in dataclasses.fields(TransformersOptions)}
    assert {name for name in options if f"| `{name}` |" not in engines} == set()
    scorer = {field.name for field in dataclasses.fields(TorchScorerSpec)} - {"model_path"}
    assert {name for name in scorer if f"`{name}`" not in configuration} == set()


def test_every_exit_code_is_documented() -> None:
    text = (ROOT / "docs" / "exit-codes.md").read_text(encoding="utf-8")
    documented = {int(code) for code in re.findall(r"^\| (\d+) \|", text, re.MULTILINE)}
    assert documented == {
        EXIT_PASS,
        EXIT_FAIL,
        EXIT_INTERRUPTED,
        EXIT_INTERNAL,
        EXIT_USAGE,
        EXIT_INCONCLUSIVE,
    }
