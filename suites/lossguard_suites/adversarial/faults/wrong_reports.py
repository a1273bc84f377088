"""Faults in what is reported about a reply whose tokens are right: counters, text, log-probabilities."""

from __future__ import annotations

import math
from dataclasses import replace
from functools import lru_cache
from pathlib import Path

from tokenizers import Tokenizer

from lossguard.records import ReportedLogprobs, Request, ServedOutput, Usage
from lossguard_suites.adversarial.faults.drawing import is_in_share


def wrong_usage(output: ServedOutput, request: Request, *, excess: int = 1, seed: int = 0) -> ServedOutput:
    """F39. The counter of reasoning tokens runs before the stop is trimmed: ``excess`` more than there are tokens."""
    usage = Usage(
        prompt_tokens=len(request.prompt_ids),
        completion_tokens=len(output.ids),
        reasoning_tokens=len(output.ids) + excess if excess else None,
    )
    return replace(output, usage=usage)


def cut_text(
    output: ServedOutput, request: Request, *, characters: int = 24, tokenizer: str = "", seed: int = 0
) -> ServedOutput:
    """F41b. The detokeniser is not flushed: the text lacks its last ``characters``, the ids are all there.

    ``tokenizer`` is the target's folder; without it the output's own text is cut.
    """
    text = _tokenizer(tokenizer).decode(list(output.ids)) if tokenizer else output.text
    if text is None:
        return output
    return replace(output, text=text[: max(0, len(text) - characters)])


def zero_logprobs(output: ServedOutput, request: Request, *, share: float = 1.0, seed: int = 0) -> ServedOutput:
    """F47. The distribution after acceptance is reported: 0.0 for every served token."""
    if output.logprobs is None or not is_in_share(request, share=share, seed=seed):
        return output
    return replace(output, logprobs=replace(output.logprobs, served=(0.0,) * len(output.ids)))


def processed_logprobs(
    output: ServedOutput, request: Request, *, sharpening: float = 0.5, seed: int = 0
) -> ServedOutput:
    """F46. Log-probabilities after the sampler's own processing, here at temperature ``1 / (1 + sharpening)``.

    Normalised over the reported top tokens, which hold nearly all of the probability.
    """
    if output.logprobs is None or not output.logprobs.top_logprobs or sharpening == 0:
        return output
    factor = 1 + sharpening
    served, top = [], []
    for value, row in zip(output.logprobs.served, output.logprobs.top_logprobs, strict=True):
        total = math.log(sum(math.exp(factor * item) for item in row))
        served.append(min(0.0, factor * value - total))
        top.append(tuple(factor * item - total for item in row))
    changed = ReportedLogprobs(served=tuple(served), top_ids=output.logprobs.top_ids, top_logprobs=tuple(top))
    return replace(output, logprobs=changed)


@lru_cache(maxsize=4)
def _tokenizer(folder: str) -> Tokenizer:
    return Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
