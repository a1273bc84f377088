"""The table [parameters]: what is read, what is refused, and that it decides which record stands for stock."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from lossguard.baseline.parameters import claim_parameters
from lossguard.config import SystemConfig, config_from_mapping
from lossguard.errors import UsageError
from lossguard.plan import Plan
from lossguard.plan_file import plan_from_json, plan_to_json
from lossguard.records import SamplingParams
from lossguard.request_parameters import request_parameters

TABLE: dict[str, Any] = {
    "repetition_penalty": 1.1,
    "presence_penalty": 1,
    "frequency_penalty": -0.5,
    "logit_bias": {"7": -100.0, "9": 2},
    "bad_words": [[3], [4, 5]],
    "grammar": "regex:[ab]+",
    "stop_strings": ["###"],
    "ignore_eos": True,
    "top_p": 0.9,
    "top_k": 40,
    "min_p": 0.02,
}
SYSTEMS = {"stock": {"engine": "callable"}, "mine": {"engine": "callable"}}


def test_values_are_those_of_sampling_params() -> None:
    found = SamplingParams(max_tokens=4, **request_parameters(TABLE))
    assert found.logit_bias == ((7, -100.0), (9, 2.0))
    assert found.bad_words == ((3,), (4, 5))
    assert found.stop_strings == ("###",)
    assert found.ignore_eos
    assert hash(found) == hash(found)
    again = request_parameters(json.loads(json.dumps(request_parameters(TABLE))))
    assert again == request_parameters(TABLE)


@pytest.mark.parametrize(
    ("table", "shown"),
    [
        ({"repetition_penality": 1.1}, "Did you mean 'repetition_penalty'"),
        ({"temperature": 0.5}, "unknown key 'temperature'"),
        ({"repetition_penalty": 0}, "over 0 and up to 10"),
        ({"presence_penalty": "1"}, "between -100 and 100"),
        ({"frequency_penalty": float("nan")}, "between -100 and 100"),
        ({"presence_penalty": True}, "between -100 and 100"),
        ({"logit_bias": {"a": 1.0}}, "from token ids to numbers"),
        ({"logit_bias": {"-1": 1.0}}, "from token ids to numbers"),
        ({"logit_bias": 3}, "from token ids to numbers"),
        ({"bad_words": [3]}, "each a list of token ids"),
        ({"bad_words": [[]]}, "each a list of token ids"),
        ({"grammar": "lark:x"}, "a JSON schema"),
        ({"top_p": 0}, "over 0 and up to 1"),
        ({"top_k": 0.5}, "whole number of tokens"),
        ({"min_p": 1.5}, "from 0 to 1"),
        ({"min_tokens": -1}, "whole number of tokens"),
        ({"min_tokens": 1.5}, "whole number of tokens"),
        ({"stop_strings": "###"}, "a list of strings"),
        ({"stop_strings": [""]}, "a list of strings"),
        ({"ignore_eos": 1}, "true or false"),
        ({"stop_strings": ["a"], "min_tokens": 3}, "give one of the two"),
    ],
)
def test_what_does_not_fit_is_refused(table: dict[str, Any], shown: str) -> None:
    with pytest.raises(UsageError) as caught:
        request_parameters(table)
    assert shown in str(caught.value)
    assert caught.value.code == "LG0630"
    with pytest.raises(UsageError, match=r"\[parameters\]"):
        config_from_mapping({"model": "m", "systems": SYSTEMS, "parameters": table})


def plan(tmp_path: Path, table: dict[str, Any]) -> Plan:
    config = config_from_mapping({"model": "m", "systems": SYSTEMS, "parameters": table}, folder=tmp_path)
    assert config.systems["mine"] == SystemConfig(name="mine", engine="callable")
    return Plan(config, candidates=["mine"], folder=tmp_path)


def test_a_plan_keeps_them_and_says_nothing_without_them(tmp_path: Path) -> None:
    asked, plain = plan(tmp_path, TABLE), plan(tmp_path, {})
    data = json.loads(json.dumps(plan_to_json(asked)))
    assert plan_from_json(data, tmp_path / "run-0001").config.parameters == request_parameters(TABLE)
    assert "parameters" not in plan_to_json(plain)
    assert "parameters" not in claim_parameters(plain)
    assert claim_parameters(asked)["parameters"]["repetition_penalty"] == 1.1
    assert claim_parameters(asked) != claim_parameters(plain)


def test_a_table_it_must_be() -> None:
    with pytest.raises(UsageError, match="must be a table"):
        config_from_mapping({"model": "m", "systems": SYSTEMS, "parameters": 3})
