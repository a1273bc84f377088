"""The toy stack under dotted names, for configurations: ``engine = "tests.baseline.toy_system:engine"``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lossguard.engines.base import EngineSpec
from tests.gate.toy import ToyEngine, ToyScorer, ToyTarget, write_model, write_prompts

CONFIGURATION = """
model = "model"
[systems.stock]
engine = "tests.baseline.toy_system:engine"
[systems.mine]
engine = "tests.baseline.toy_system:engine"
batch_size = 5
[systems.broken]
engine = "tests.baseline.toy_system:engine"
dies_after = 71
[scorer]
engine = "tests.baseline.toy_system:scorer"
[prompts]
sets = ["prompts.jsonl"]
seed = 1
"""


def engine(spec: EngineSpec) -> ToyEngine:
    """An engine factory."""
    return ToyEngine(ToyTarget(), **spec.options)


def scorer(_model_path: str, _options: Mapping[str, Any]) -> ToyScorer:
    """A scorer factory."""
    return ToyScorer(ToyTarget())


def write_project(folder: Path) -> None:
    """A folder in which ``lossguard`` can be run."""
    write_model(folder / "model")
    write_prompts(folder / "prompts.jsonl", 400)
    (folder / "lossguard.toml").write_text(CONFIGURATION)
