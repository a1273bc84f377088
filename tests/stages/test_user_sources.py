"""Code that a configuration names is part of a system's fingerprint: a record of a changed stock is refused."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from lossguard.config import SystemConfig, load_config
from lossguard.errors import BaselineError
from lossguard.gate import check_record, record_baseline
from lossguard.plan import Budget, Plan
from lossguard.stages.user_sources import source_facts
from tests.gate.toy import write_model, write_prompts

STOCK = """
def generate(prompts, max_new_tokens):
    return [[1 + (sum(prompt) + at) % 90 for at in range(max_new_tokens)] for prompt in prompts]
"""
CONFIGURATION = """
model = "model"
[systems.stock]
engine = "callable"
target = "my_changing_stock:generate"
[scorer]
engine = "tests.baseline.toy_system:scorer"
[prompts]
sets = ["prompts.jsonl"]
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A stock that is a function of the user's own module."""
    monkeypatch.setenv("LOSSGUARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "my_changing_stock", raising=False)
    write_model(tmp_path / "model")
    write_prompts(tmp_path / "prompts.jsonl", 40)
    (tmp_path / "my_changing_stock.py").write_text(STOCK)
    (tmp_path / "lossguard.toml").write_text(CONFIGURATION)
    return tmp_path


def test_a_record_of_a_stock_whose_code_was_changed_is_refused(project: Path) -> None:
    budget = Budget(name="toy", num_requests=4, max_tokens=4, num_calibration=4)
    plan = Plan(load_config(project / "lossguard.toml"), budget=budget, folder=project / "runs")
    path = record_baseline(plan, claim="p", target=project / "p.safetensors")
    recorded = Plan(plan.config, budget=budget, folder=project / "runs", record=path)
    check_record(recorded)
    (project / "my_changing_stock.py").write_text(STOCK.replace("1 + (", "2 + ("))
    with pytest.raises(BaselineError, match=r"engine\.sources\.my_changing_stock:generate") as caught:
        check_record(recorded)
    assert caught.value.code == "LG0705"


def test_every_function_of_a_table_is_named() -> None:
    table = {
        "target": f"{__name__}:a",
        "logits_processors": [{"factory": f"{__name__}:b", "strength": "x:y"}, f"{__name__}:c"],
        "device": f"{__name__}:d",
        "post_processors": ["nowhere_at_all:e"],
    }
    facts = source_facts(SystemConfig(name="s", engine=f"{__name__}:create", options=table))
    assert set(facts) == {f"{__name__}:{name}" for name in ("a", "b", "c", "create")}
    assert len(set(facts.values())) == 1


def test_kinds_have_no_sources_of_their_own() -> None:
    assert source_facts(SystemConfig(name="s", engine="transformers")) == {}
