"""Planting faults in the tiny model of ``conftest.py``: requests that each fault can strike, and who serves them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from lossguard.engines.base import EngineSpec
from lossguard.engines.extensions import BatchContext
from lossguard.engines.transformers_engine import create
from lossguard.records import Request, SamplingParams, ServedOutput
from lossguard_suites.adversarial.faults import Fault

STOP_ID = 2
VOCAB_SIZE = 512
MAX_TOKENS = 32

FIRM: Mapping[str, Mapping[str, Any]] = {
    "wrong-token": {"every": 1},
    "improbable-draws": {"every": 1, "tail": 0.01},
    "rare-bias": {"every": 1},
    "noisy-cache": {"longer_than": 20},
    "neighbours-count": {"probability": 1.0},
    "loop-start": {"share": 1.0},
    "unverified-draft": {"matched": 1},
    "repeated-token": {"probability": 0.2},
    "swap-near-ties": {"delta": 2.0},
    "doubled-at-resume": {"share": 1.0},
    "impossible-id": {"probability": 0.1},
    "early-stop": {"sentence_end_ids": list(range(0, VOCAB_SIZE, 5))},
    "frozen-positions": {"limit": 40},
    "cut-text": {"tokenizer": ""},
}
"""Arguments that make a fault strike among a few requests of a tiny model; the other faults do as they are."""


def make_requests(number: int = 8, **sampling: Any) -> list[Request]:
    """Prompts of 20 to 44 tokens, numbered so that late ones are at 60 and above."""
    generator = torch.Generator().manual_seed(1)
    asked = SamplingParams(**{"max_tokens": MAX_TOKENS, "stop_ids": (STOP_ID,), **sampling})
    prompts = [torch.randint(3, VOCAB_SIZE, (20 + 6 * (index % 5),), generator=generator) for index in range(number)]
    return [
        Request(
            id=f"s-{index + 57:03d}", prompt_ids=tuple(prompt.tolist()), sampling=asked, set="s", cluster=f"{index}"
        )
        for index, prompt in enumerate(prompts)
    ]


def requests_for(planted: Fault) -> list[Request]:
    """Requests that ask for what the fault gets wrong."""
    if planted.temperature and not planted.is_control:
        return make_requests(temperature=0.9, seed=3, top_p=0.8)
    if "repetition_penalty" in planted.asks:
        return make_requests(repetition_penalty=1.3)
    if "logit_bias" in planted.asks:
        return make_requests(logit_bias=tuple((token, -100.0) for token in range(0, VOCAB_SIZE, 2)))
    if "logprob" in planted.seen_by:
        return make_requests(logprobs=3)
    if planted.expect.get("drafts"):
        return make_requests(3, max_tokens=12)  # slow: one request at a time
    return make_requests()


def with_stop(requests: Sequence[Request], outputs: Sequence[ServedOutput]) -> list[Request]:
    """The same requests, which now end where they served their eighth token."""
    stops = tuple(sorted({output.ids[7] for output in outputs}))
    return [replace(item, sampling=replace(item.sampling, stop_ids=stops)) for item in requests]


def serve(path: str, requests: Sequence[Request], options: Mapping[str, Any] | None = None) -> list[ServedOutput]:
    """In the order of the requests, in this process."""
    given = {key: path if value == "{model}" else value for key, value in (options or {}).items()}
    given.pop("processes", None)
    system = create(EngineSpec(name="mine", model_path=path, options=given))
    outputs = {output.request_id: output for output in system.serve(requests)}
    return [outputs[request.id] for request in requests]


def context_of(requests: Sequence[Request], stop_ids: tuple[int, ...] = (STOP_ID,)) -> BatchContext:
    return BatchContext(
        requests=tuple(requests),
        prompt_length=max(len(request.prompt_ids) for request in requests),
        stop_ids=stop_ids,
        vocab_size=VOCAB_SIZE,
        model_path="unused",
    )


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    return next((at for at, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), None)


def timeless(output: ServedOutput) -> ServedOutput:
    """Without what the clock says."""
    return replace(output, sent_ns=0, arrival_ns=())
