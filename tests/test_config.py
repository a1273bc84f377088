"""Configuration: what is read, and how what does not fit is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from lossguard.config import config_from_mapping, load_config
from lossguard.errors import UsageError
from lossguard.plan import BUDGETS, Budget, Plan, parse_budget

GOOD = """
model = "smollm2"
seed = 5
[systems.stock]
engine = "transformers"
batch_size = 8
[systems.lookup]
engine = "transformers"
prompt_lookup_num_tokens = 4
expect = { drafts = true }
[scorer]
threads = 2
[prompts]
sets = ["default", "mine.jsonl"]
"""


def test_reads_a_file(tmp_path: Path) -> None:
    (tmp_path / "lossguard.toml").write_text(GOOD)
    config = load_config(tmp_path / "lossguard.toml")
    assert config.system("lookup").expect == {"drafts": True}
    assert config.system("stock").options == {"batch_size": 8}
    assert config.scorer.engine == "torch"
    assert config.scorer.options == {"threads": 2}
    assert config.prompts.sets == ("default", "mine.jsonl")
    assert config.folder == tmp_path


def test_finds_the_nearest_file_and_pyproject(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "pyproject.toml").write_text(
        '[tool.lossguard]\nmodel = "m"\n[tool.lossguard.systems.a]\nengine = "callable"\n'
    )
    inner = tmp_path / "deep" / "er"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert load_config().system("a").engine == "callable"


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        ({"modle": "x"}, "unknown key 'modle'. Did you mean 'model'"),
        ({"model": 3}, "no 'model'"),
        ({"systems": {}}, "no \\[systems.NAME\\]"),
        ({"systems": {"a": {"enigne": "x"}}}, "has no 'engine'"),
        ({"systems": {"../a": {"engine": "x"}}}, "cannot be a folder"),
        ({"systems": {"log.txt": {"engine": "x"}}}, "cannot be a folder"),
        ({"systems": {"a": {"engine": "x", "expect": 1}}}, "expect must be a table"),
        ({"prompts": {"set": ["a"]}}, "Did you mean 'sets'"),
        ({"prompts": {"sets": "chat"}}, "must be a list"),
        ({"seed": True}, "seed must be a whole number"),
        ({"scorer": {"engine": 1}}, "engine must be a string"),
    ],
)
def test_refuses_what_does_not_fit(change: dict[str, object], expected: str) -> None:
    good = {"model": "m", "systems": {"a": {"engine": "x"}}}
    with pytest.raises(UsageError, match=expected) as caught:
        config_from_mapping({**good, **change})
    assert caught.value.code == "LG0603"


def test_no_file_and_broken_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match="LG0601"):
        load_config(tmp_path / "absent.toml")
    (tmp_path / "broken.toml").write_text("model = ")
    with pytest.raises(UsageError, match="not valid TOML"):
        load_config(tmp_path / "broken.toml")


def test_unknown_system_names_the_near_miss() -> None:
    config = config_from_mapping({"model": "m", "systems": {"stock": {"engine": "x"}}})
    with pytest.raises(UsageError, match="Did you mean 'stock'"):
        config.system("stok")


def test_plan_checks_itself() -> None:
    config = config_from_mapping({"model": "m", "systems": {"stock": {"engine": "x"}, "a": {"engine": "x"}}})
    assert Plan(config, candidates=["a"]).sizes == BUDGETS["standard"]
    assert Plan(config, candidates=["a"], seed=3).effective_seed == 3
    assert Plan(config, candidates=["a"]).effective_seed == 17
    bad: dict[str, Any]
    for bad in (
        {"candidates": "a"},
        {"candidates": ["a", "a"]},
        {"candidates": ["stock"]},
        {"candidates": ["a"], "budget": "standart"},
        {"candidates": ["a"], "budget": "0x24"},
        {"candidates": ["a"], "budget": "210x24x60x1"},
        {"candidates": ["a"], "repeats": 0},
        {"candidates": ["a"], "temperature": -1.0},
    ):
        with pytest.raises(UsageError, match="LG0604"):
            Plan(config, **bad)


def test_a_budget_is_a_name_or_sizes() -> None:
    assert parse_budget("quick") == BUDGETS["quick"]
    assert parse_budget("210x24") == Budget(name="210x24", num_requests=210, max_tokens=24, num_calibration=60)
    assert parse_budget("210x24x80") == Budget(name="210x24x80", num_requests=210, max_tokens=24, num_calibration=80)
    config = config_from_mapping({"model": "m", "systems": {"stock": {"engine": "x"}, "a": {"engine": "x"}}})
    assert Plan(config, candidates=["a"], budget="210x24").sizes == parse_budget("210x24")


@pytest.mark.parametrize("text", ["", "x", "210", "210x", "x24", "210x0", "-1x24", "210 x 24", "1e3x24", "99999999x1"])
def test_other_budgets_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match="LG0604"):
        parse_budget(text)
