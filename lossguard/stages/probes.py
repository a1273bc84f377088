"""A few short prompts of the configured model, for trying things out."""

from __future__ import annotations

from lossguard.config import Config
from lossguard.models import resolve_model
from lossguard.prompts import load_prompt_set
from lossguard.prompts.base import Split
from lossguard.prompts.render import build_requests, load_tokenizer, stop_ids_of
from lossguard.records import Request, SamplingParams

NUM_PROBES = 16


def calibration_requests(config: Config, max_tokens: int) -> tuple[Request, ...]:
    """All of the default set's calibration prompts, greedy."""
    path = resolve_model(config.model, config.folder)
    tokenizer = load_tokenizer(path)
    prompts = load_prompt_set(("default",), tokenizer=tokenizer, seed=config.prompts.seed, folder=config.folder)
    sampling = SamplingParams(max_tokens=max_tokens)
    return build_requests(prompts.split(Split.CALIBRATION), tokenizer, sampling, stop_ids=stop_ids_of(path))


def shortest(requests: tuple[Request, ...]) -> list[Request]:
    """The ``NUM_PROBES`` requests with the shortest prompts."""
    return sorted(requests, key=lambda request: len(request.prompt_ids))[:NUM_PROBES]
