"""An engine outside of a run, and a scorer that is missed before anything is served."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lossguard.config import Config, ScorerConfig, SystemConfig
from lossguard.errors import UsageError
from lossguard.gate import open_engine, run_gate
from lossguard.plan import Plan
from tests.gate.toy import ToyEngine, ToyTarget, handle, write_model, write_prompts


def config(folder: Path) -> Config:
    """A model and one system that serves through a function."""
    write_model(folder / "model")
    stock = SystemConfig(name="stock", engine="tests.baseline.toy_system:engine", options={"batch_size": 3})
    return Config(model="model", systems={"stock": stock}, folder=folder)


def test_a_system_of_the_configuration(tmp_path: Path) -> None:
    engine = open_engine(config(tmp_path), "stock")
    assert engine.capabilities.concurrency == 3
    engine.close()


def test_a_system_of_this_process(tmp_path: Path) -> None:
    mine = ToyEngine(ToyTarget())
    assert open_engine(config(tmp_path), handle("mine", mine)) is mine


def test_a_system_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="LG0602"):
        open_engine(config(tmp_path), "stok")


def test_a_scorer_that_is_not_there_is_found_before_anything_is_served(tmp_path: Path) -> None:
    write_prompts(tmp_path / "prompts.jsonl", 10)
    stock, candidate = ToyEngine(ToyTarget()), ToyEngine(ToyTarget())
    wrong = replace(config(tmp_path), scorer=ScorerConfig(engine="nowhere"))
    with pytest.raises(UsageError, match="LG0609"):
        run_gate(Plan(wrong, baseline=handle("stock", stock), candidates=[handle("mine", candidate)]))
    assert stock.num_served == candidate.num_served == 0
