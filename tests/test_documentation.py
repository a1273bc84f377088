"""What the documents say must be so: options, exit codes. Links and code blocks: tests/documents."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path

from lossguard.config import load_config
from lossguard.engines.base import EngineSpec
from lossguard.engines.servers.options import NAMES
from lossguard.engines.transformers_options import TransformersOptions, parse_options
from lossguard.gate_result import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_INTERNAL, EXIT_INTERRUPTED, EXIT_PASS, EXIT_USAGE
from lossguard.scoring.spec import TorchScorerSpec, spec_from_options
from lossguard_mechanisms.engine.options import parse_options as parse_embedded_options

ROOT = Path(__file__).resolve().parent.parent
FENCE = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
SERVERS = ("sglang", "vllm", "llamacpp", "openai")


def test_every_option_of_a_server_is_documented() -> None:
    text = (ROOT / "docs" / "engines.md").read_text(encoding="utf-8")
    section = text.partition("## Servers")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    documented = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
    assert set(NAMES) <= documented
    assert documented <= set(NAMES) | set(SERVERS)


def test_the_readme_has_code_blocks_and_stays_short() -> None:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert {"python", "toml"} <= {language for language, _ in FENCE.findall(text)}
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
