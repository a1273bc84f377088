"""Options of the transformers engine."""

from __future__ import annotations

from typing import Any

import pytest

from lossguard.engines.base import EngineSpec
from lossguard.engines.transformers_options import TransformersOptions, parse_options
from lossguard.errors import UsageError


def parse(**options: Any) -> TransformersOptions:
    return parse_options(EngineSpec(name="mine", model_path="unused", options=options))


def test_defaults() -> None:
    options = parse()
    assert (options.batch_size, options.order, options.dtype, options.processes) == (64, "request", "auto", 1)
    assert not options.is_assisted


def test_log_probabilities_of_test_replies_are_an_option_and_no_fact_without_it() -> None:
    assert parse(logprobs=5).to_json()["logprobs"] == 5
    assert "logprobs" not in parse().to_json()


def test_drafts_mean_batch_size_one() -> None:
    assert parse(prompt_lookup_num_tokens=4).batch_size == 1
    assert parse(assistant_model="self").is_assisted


def test_extensions_take_arguments() -> None:
    options = parse(logits_processors=["a:b", {"factory": "c:d", "strength": 2}], post_processors=["e:f"])
    assert [(item.target, dict(item.arguments)) for item in options.logits_processors] == [
        ("a:b", {}),
        ("c:d", {"strength": 2}),
    ]
    assert options.to_json()["post_processors"] == [{"target": "e:f", "arguments": {}}]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"bach_size": 2}, "Did you mean 'batch_size'"),
        ({"batch_size": 0}, "at least 1"),
        ({"batch_size": True}, "at least 1"),
        ({"dtype": "bfloat"}, "Did you mean 'bfloat16'"),
        ({"order": "random"}, "order = 'random'"),
        ({"device": ""}, "should be a string"),
        ({"prompt_lookup_num_tokens": 3, "batch_size": 2}, "batch size 1"),
        ({"prompt_lookup_num_tokens": 3, "assistant_model": "self"}, "come from one of them"),
        ({"assistant_model": "self", "pad_to_multiple_of": 8}, "pad_to_multiple_of"),
        ({"num_assistant_tokens": 3}, "no assistant_model"),
        ({"assistant_model": "self", "logprobs": 3}, "does not report of verified drafts"),
        ({"max_matching_ngram_size": 3}, "no prompt_lookup_num_tokens"),
        ({"quantization": "int8-dynamic", "weight_round_trip": "int4"}, "one kind of loss"),
        ({"quantization": "int8-dynamic", "dtype": "bfloat16"}, "float32"),
        ({"quantization": "int8-dynamic", "device": "cuda"}, "CPU only"),
        ({"quantization": "int3"}, "quantization = 'int3'"),
        ({"logits_processors": "a:b"}, "should be a list"),
        ({"logits_processors": ["ab"]}, "module:function"),
        ({"post_processors": [{"strength": 2}]}, "module:function"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], words: str) -> None:
    with pytest.raises(UsageError) as caught:
        parse(**options)
    assert caught.value.code == "LG0204"
    assert words in caught.value.found
    assert "'mine'" in caught.value.found
