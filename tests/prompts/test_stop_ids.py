"""End-of-sequence ids as a model folder declares them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lossguard.errors import UsageError
from lossguard.prompts.stop_ids import stop_ids_of


@pytest.mark.parametrize(
    ("generation", "config", "expected"),
    [
        ({"eos_token_id": [2, 7, 2]}, {"eos_token_id": 9}, (2, 7)),
        ({"eos_token_id": None}, {"eos_token_id": 9}, (9,)),
        ({}, {"text_config": {"eos_token_id": [4]}}, (4,)),
        (None, {"eos_token_id": 0}, (0,)),
        (None, {}, ()),
        (None, None, ()),
    ],
)
def test_generation_config_comes_first(
    tmp_path: Path, generation: dict[str, Any] | None, config: dict[str, Any] | None, expected: tuple[int, ...]
) -> None:
    for name, data in (("generation_config.json", generation), ("config.json", config)):
        if data is not None:
            (tmp_path / name).write_text(json.dumps(data))
    assert stop_ids_of(tmp_path) == expected


@pytest.mark.parametrize("text", ["{", "[1]", '{"eos_token_id": "</s>"}', '{"eos_token_id": [true]}'])
def test_what_cannot_be_read_is_an_error(tmp_path: Path, text: str) -> None:
    (tmp_path / "config.json").write_text(text)
    with pytest.raises(UsageError, match=r"config\.json") as caught:
        stop_ids_of(tmp_path)
    assert caught.value.code == "LG0425"
