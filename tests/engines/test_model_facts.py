"""Facts of a model folder."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lossguard.engines.model_facts import ModelFacts, read_model_facts
from lossguard.errors import UsageError


def write(folder: Path, config: Any, generation: Any = None) -> ModelFacts:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    if generation is not None:
        (folder / "generation_config.json").write_text(json.dumps(generation), encoding="utf-8")
    return read_model_facts(str(folder))


def test_generation_config_wins_for_end_of_sequence(tmp_path: Path) -> None:
    facts = write(
        tmp_path,
        {"vocab_size": 9, "eos_token_id": 2, "dtype": "bfloat16", "max_position_embeddings": 64},
        {"eos_token_id": [3, 4]},
    )
    assert facts == ModelFacts(vocab_size=9, max_positions=64, dtype="bfloat16", eos_ids=(3, 4), pad_id=3)


def test_older_and_nested_configs(tmp_path: Path) -> None:
    facts = write(tmp_path, {"text_config": {"vocab_size": 5, "torch_dtype": "float16", "pad_token_id": -1}})
    assert facts == ModelFacts(vocab_size=5, max_positions=None, dtype="float16", eos_ids=(), pad_id=0)


@pytest.mark.parametrize("config", [[], {"vocab_size": None}, {}])
def test_a_folder_without_a_usable_config_is_refused(tmp_path: Path, config: Any) -> None:
    with pytest.raises(UsageError) as caught:
        write(tmp_path, config)
    assert caught.value.code == "LG0206"


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot be read"):
        read_model_facts(str(tmp_path / "nowhere"))
