"""Refusing requests that an engine cannot honour, before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from lossguard.errors import UsageError
from lossguard.records import Request


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestLimits:
    """What an engine can take."""

    engine: str
    sampling: frozenset[str]  # SamplingParams fields that it honours, besides max_tokens and logprobs
    max_logprobs: int
    vocab_size: int | None  # None: unknown
    max_positions: int | None  # None: unknown
    lora: bool = False


def check_requests(requests: Sequence[Request], limits: RequestLimits) -> None:
    """Raise UsageError LG0207 (asks for what the engine cannot do) or LG0208 (does not fit the model)."""
    for request in requests:
        _check_abilities(request, limits)
        _check_fit(request, limits)


def _check_abilities(request: Request, limits: RequestLimits) -> None:
    sampling = request.sampling
    unsupported = sorted(sampling.non_default() - limits.sampling)
    if unsupported:
        hint = " (expand n into repeats with their own repeat_id)" if "n" in unsupported else ""
        raise _unsupported(request, f"{', '.join(unsupported)}{hint}", limits)
    if sampling.stop_strings and sampling.min_tokens:
        raise _unsupported(request, "stop_strings together with min_tokens", limits)
    if sampling.logprobs > limits.max_logprobs:
        raise _unsupported(request, f"logprobs = {sampling.logprobs} (at most {limits.max_logprobs})", limits)
    if request.lora_id is not None and not limits.lora:
        raise _unsupported(request, f"the LoRA {request.lora_id!r}", limits)


def _check_fit(request: Request, limits: RequestLimits) -> None:
    length, wanted = len(request.prompt_ids), request.sampling.max_tokens
    if length == 0:
        raise _unfit(request, "has an empty prompt")
    if wanted < 1:
        raise _unfit(request, f"has max_tokens = {wanted}, at least 1 is needed")
    if limits.vocab_size is not None:
        outside = [token for token in request.prompt_ids if not 0 <= token < limits.vocab_size]
        if outside:
            raise _unfit(request, f"has prompt id {outside[0]}, outside the vocabulary of {limits.vocab_size}")
    if limits.max_positions is not None and length + wanted > limits.max_positions:
        raise _unfit(
            request, f"needs {length} + {wanted} positions (prompt + max_tokens), the model has {limits.max_positions}"
        )


def _unsupported(request: Request, what: str, limits: RequestLimits) -> UsageError:
    return UsageError(
        f"request {request.id!r} asks for {what}, which the {limits.engine} engine does not do",
        why="a parameter that an engine drops would be judged as if it had been honoured",
        fix="leave it out of the requests, or judge this system through an engine that supports it",
        code="LG0207",
    )


def _unfit(request: Request, what: str) -> UsageError:
    return UsageError(
        f"request {request.id!r} {what}",
        why="the model would compute on positions or ids that it does not have",
        fix="shorten or drop that prompt, lower max_tokens, or check that prompts and model share a tokenizer",
        code="LG0208",
    )
