"""Requests that an engine cannot honour are refused by name."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lossguard.engines.request_checks import RequestLimits, check_requests
from lossguard.errors import UsageError
from lossguard.records import Request, SamplingParams

LIMITS = RequestLimits(
    engine="test", sampling=frozenset({"stop_ids", "stop_strings", "min_tokens"}), max_logprobs=3, vocab_size=10,
    max_positions=8,
)  # fmt: skip
GOOD = Request(id="good", prompt_ids=(1, 2, 9), sampling=SamplingParams(max_tokens=5), set="s", cluster="c")


def asking(**sampling: Any) -> Request:
    return replace(GOOD, id="odd", sampling=SamplingParams(**{"max_tokens": 5, **sampling}))


def test_a_fitting_request_is_taken() -> None:
    check_requests([GOOD, asking(logprobs=3, stop_ids=(2,))], LIMITS)


@pytest.mark.parametrize(
    ("request_", "words", "code"),
    [
        (asking(presence_penalty=0.5), "presence_penalty", "LG0207"),
        (asking(n=2), "expand n into repeats", "LG0207"),
        (asking(temperature=1.0, top_k=4), "temperature, top_k", "LG0207"),
        (asking(grammar="root ::= x"), "grammar", "LG0207"),
        (asking(logprobs=4), "logprobs = 4 (at most 3)", "LG0207"),
        (asking(stop_strings=("x",), min_tokens=1), "together", "LG0207"),
        (replace(GOOD, id="odd", lora_id="mine"), "LoRA 'mine'", "LG0207"),
        (replace(GOOD, id="odd", prompt_ids=(1, 10)), "prompt id 10", "LG0208"),
        (replace(GOOD, id="odd", prompt_ids=(-1,)), "prompt id -1", "LG0208"),
        (replace(GOOD, id="odd", prompt_ids=(1, 2, 3, 4)), "4 + 5 positions", "LG0208"),
        (replace(GOOD, id="odd", prompt_ids=()), "empty prompt", "LG0208"),
        (asking(max_tokens=0), "max_tokens = 0", "LG0208"),
    ],
)
def test_others_are_refused_by_name(request_: Request, words: str, code: str) -> None:
    with pytest.raises(UsageError) as caught:
        check_requests([GOOD, request_], LIMITS)
    assert caught.value.code == code
    assert words in caught.value.found
    assert "'odd'" in caught.value.found
