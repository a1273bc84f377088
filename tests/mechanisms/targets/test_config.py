"""Configs from and to Hugging Face; what is not supported is named."""

from __future__ import annotations

from typing import Any

import pytest

from lossguard.errors import UsageError
from lossguard_mechanisms.targets.config import ATTENTION, DELTA, config_from_hf, config_to_hf
from tests.mechanisms.targets.tiny import FAMILIES, HYBRIDS, their_model


def hf_config(family: str) -> dict[str, Any]:
    data: dict[str, Any] = their_model(family).config.to_dict()
    return data


@pytest.mark.parametrize("family", FAMILIES)
def test_what_is_written_is_read_back(family: str) -> None:
    config = config_from_hf(hf_config(family))
    assert config_from_hf(config_to_hf(config, dtype="bfloat16")) == config


@pytest.mark.parametrize("family", FAMILIES)
def test_transformers_reads_what_is_written(family: str) -> None:
    model = their_model(family)
    written = config_to_hf(config_from_hf(model.config.to_dict()), dtype="float32")
    again = type(model.config).from_dict(written)
    assert config_from_hf(again.to_dict()) == config_from_hf(model.config.to_dict())


def test_every_fourth_layer_attends_unless_said_otherwise() -> None:
    data = {**hf_config("qwen3_5_text"), "layer_types": None, "num_hidden_layers": 8}
    assert config_from_hf(data).layer_types == (DELTA, DELTA, DELTA, ATTENTION) * 2
    assert config_from_hf({**data, "full_attention_interval": 2}).layer_types == (DELTA, ATTENTION) * 4


def test_a_multimodal_config_is_read_by_its_text_part() -> None:
    text = hf_config("qwen3_5_text")
    assert config_from_hf({"model_type": "qwen3_5", "text_config": text}) == config_from_hf(text)


def test_the_older_form_of_rotary_options() -> None:
    data = hf_config("qwen3_next")
    rope = data.pop("rope_parameters")
    older = {**data, "rope_theta": rope["rope_theta"], "partial_rotary_factor": rope["partial_rotary_factor"]}
    assert config_from_hf(older) == config_from_hf(hf_config("qwen3_next"))


def test_stop_tokens_may_be_one_or_several() -> None:
    data = hf_config("llama")
    assert config_from_hf({**data, "eos_token_id": 7}).eos_token_ids == (7,)
    assert config_from_hf({**data, "eos_token_id": [7, 9]}).eos_token_ids == (7, 9)
    assert config_from_hf({**data, "eos_token_id": None}).eos_token_ids == ()


@pytest.mark.parametrize("family", HYBRIDS)
@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"model_type": "gpt2"}, "gpt2"),
        ({"model_type": "qwen3_nest"}, "qwen3_next"),
        ({"attention_bias": True}, "attention_bias"),
        ({"hidden_act": "gelu"}, "gelu"),
        ({"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, "yarn"),
        ({"num_experts": 8}, "8 experts"),
        ({"use_sliding_window": True}, "sliding"),
        ({"layer_types": ["sliding_attention"] * 5}, "sliding_attention"),
        ({"num_key_value_heads": 4}, "6 heads over 4"),
        ({"linear_num_value_heads": 5}, "5 value heads over 2"),
        ({"head_dim": 10}, "5 rotary"),
        ({"layer_types": []}, "no layers"),
    ],
)
def test_what_is_not_supported_is_named(family: str, change: dict[str, Any], named: str) -> None:
    with pytest.raises(UsageError, match="LG1301") as caught:
        config_from_hf({**hf_config(family), **change})
    assert named in str(caught.value)


@pytest.mark.parametrize("missing", ["hidden_size", "vocab_size", "rms_norm_eps", "linear_key_head_dim"])
def test_a_missing_size_is_named(missing: str) -> None:
    data = hf_config("qwen3_5_text")
    del data[missing]
    with pytest.raises(UsageError, match=missing):
        config_from_hf(data)
