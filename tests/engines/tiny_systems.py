"""Systems on the tiny model of ``conftest.py``, and the model itself to hold them against."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from lossguard.engines.base import EngineSpec, ForcedPrefix
from lossguard.engines.transformers_engine import TransformersEngine, create
from lossguard.records import Request, SamplingParams, ServedOutput

STOP_ID = 2
MAX_TOKENS = 12
SAMPLES = "tests.engines.extension_samples"


def make_requests(number: int = 6, **sampling: Any) -> list[Request]:
    generator = torch.Generator().manual_seed(1)
    asked = SamplingParams(**{"max_tokens": MAX_TOKENS, "stop_ids": (STOP_ID,), **sampling})
    lengths = [5 + 4 * (index % 3) for index in range(number)]
    prompts = [torch.randint(3, 512, (length,), generator=generator).tolist() for length in lengths]
    return [
        Request(id=f"r{index}", prompt_ids=tuple(prompt), sampling=asked, set="s", cluster=f"r{index}")
        for index, prompt in enumerate(prompts)
    ]


def engine(path: str, **options: Any) -> TransformersEngine:
    return create(EngineSpec(name="mine", model_path=path, options=options))


def serve(path: str, requests: Sequence[Request], **options: Any) -> list[ServedOutput]:
    system = engine(path, **options)
    outputs = {output.request_id: output for output in system.serve(requests)}
    system.close()
    return [outputs[request.id] for request in requests]


def ids_of(outputs: Sequence[ServedOutput]) -> list[tuple[int, ...]]:
    return [output.ids for output in outputs]


def load(path: str) -> Any:
    loader: Any = AutoModelForCausalLM
    return loader.from_pretrained(path)


def raw_logits(path: str, request: Request, ids: Sequence[int]) -> torch.Tensor:
    """float32 [T, V]: logits at every position of a reply, by one plain forward pass."""
    model = load(path)
    with torch.no_grad():
        logits: torch.Tensor = model(torch.tensor([[*request.prompt_ids, *ids]])).logits[0].float()
    return logits[len(request.prompt_ids) - 1 : -1]


def prefixes(requests: Sequence[Request], outputs: Sequence[ServedOutput]) -> list[ForcedPrefix]:
    return [
        ForcedPrefix(request=request, served_ids=output.ids, num_positions=len(output.ids))
        for request, output in zip(requests, outputs, strict=True)
    ]
