"""A request's parameters, replayed on the reference's logits: penalties, biases, bad words, minimum length, grammar.

Every engine agrees on the formulas and not on what they count, nor on their order; a ``Convention`` says which engine's
is meant. With x the logit, n the number of earlier occurrences and in FP32, token by token along the served prefix:

- repetition (Keskar et al. 2019, section 4.1, in the form that all engines use): x / r if x > 0 else x * r, where n > 0
- frequency and presence (OpenAI's API reference): x - f * n - p * [n > 0]
- bias: x + b; masks (bad words, stop ids before ``min_tokens``, grammar): the token cannot be served
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lossguard.records import Request, SamplingParams
from lossguard.scoring.grammar_masks import GrammarMasks, GrammarWalk

IntArray = NDArray[np.int64]

MASKED: Final = -1e30
"""The logit of a token that cannot be served: finite, so that sampled moments stay numbers; far below any logit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Convention:
    """What an engine counts, and in which order it changes logits."""

    steps: tuple[str, ...] = ("bias", "repetition", "additive")
    repetition_counts_prompt: bool = True
    additive_counts_prompt: bool = False
    masks_ignored_eos: bool = False


CONVENTIONS: Final = {
    "transformers": Convention(),
    "vllm": Convention(),
    "sglang": Convention(steps=("additive", "repetition", "bias"), repetition_counts_prompt=False),
    "llamacpp": Convention(additive_counts_prompt=True, masks_ignored_eos=True),
}
"""By engine; ``transformers`` and vLLM do the same."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayedRequest:
    """A request with parameters to replay. ``masks`` is None without a grammar, or where it cannot be replayed."""

    prompt_ids: IntArray
    sampling: SamplingParams
    convention: Convention
    masks: GrammarMasks | None

    @property
    def is_whole(self) -> bool:
        """Whether every parameter can be replayed."""
        return self.sampling.grammar is None or self.masks is not None

    def walk(self) -> GrammarWalk | None:
        """A walk along the grammar for one reply."""
        if self.masks is None or self.sampling.grammar is None:
            return None
        return self.masks.walk(self.sampling.grammar, self.sampling.stop_ids)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowContext:
    """What stands before one scored row: the request, and the tokens of the reply that were served before."""

    request: ReplayedRequest
    prefix: IntArray  # [position]
    walk: GrammarWalk | None = field(repr=False, default=None)


def replayed_request(request: Request, convention: Convention, masks: GrammarMasks | None) -> ReplayedRequest | None:
    """The request's parameters, or None if none of them changes which token is best."""
    sampling = request.sampling
    hides_eos = convention.masks_ignored_eos and sampling.ignore_eos
    if not sampling.replayed_parameters() and not hides_eos:
        return None
    return ReplayedRequest(
        prompt_ids=np.asarray(request.prompt_ids, dtype=np.int64),
        sampling=sampling,
        convention=convention,
        masks=masks if sampling.grammar is not None else None,
    )


def replay(logits: Tensor, contexts: Sequence[RowContext]) -> Tensor:
    """Change FP32 logits [N, V] in place; returns for each row whether every parameter was applied, bool [N]."""
    done = [_replay_row(row, context) for row, context in zip(logits, contexts, strict=True)]
    return torch.tensor(done, dtype=torch.bool, device=logits.device)


def _replay_row(logits: Tensor, context: RowContext) -> bool:
    request = context.request
    for step in request.convention.steps:
        _STEPS[step](logits, context)
    _mask(logits, _bad_words(context) + _hidden_stops(context))
    if request.sampling.grammar is None:
        return True
    allowed = None if context.walk is None else context.walk.allowed(context.prefix.tolist())
    if allowed is None or not allowed.any():
        return False
    logits.masked_fill_(~torch.from_numpy(allowed).to(logits.device), MASKED)
    return True


def _apply_bias(logits: Tensor, context: RowContext) -> None:
    for token, bias in context.request.sampling.logit_bias:
        if 0 <= token < len(logits):  # a bias on an id that does not exist changes nothing
            logits[token] += bias


def _apply_repetition(logits: Tensor, context: RowContext) -> None:
    penalty = context.request.sampling.repetition_penalty
    if penalty == 1.0:
        return
    tokens, _ = _counted(context, with_prompt=context.request.convention.repetition_counts_prompt)
    place = torch.from_numpy(tokens[tokens < len(logits)]).to(logits.device)
    values = logits[place]
    logits[place] = torch.where(values < 0, values * penalty, values / penalty)


def _apply_additive(logits: Tensor, context: RowContext) -> None:
    asked = context.request.sampling
    if asked.frequency_penalty == 0.0 and asked.presence_penalty == 0.0:
        return
    tokens, counts = _counted(context, with_prompt=context.request.convention.additive_counts_prompt)
    known = tokens < len(logits)
    shift = asked.frequency_penalty * counts[known] + asked.presence_penalty
    place = torch.from_numpy(tokens[known]).to(logits.device)
    logits[place] -= torch.from_numpy(shift.astype(np.float32)).to(logits.device)


_STEPS: Final = {"bias": _apply_bias, "repetition": _apply_repetition, "additive": _apply_additive}


def _counted(context: RowContext, *, with_prompt: bool) -> tuple[IntArray, IntArray]:
    """(ids, how often each occurs)"""
    ids = np.concatenate([context.request.prompt_ids, context.prefix]) if with_prompt else context.prefix
    return np.unique(ids, return_counts=True)


def _bad_words(context: RowContext) -> list[int]:
    """Last tokens of the words that the context has all but the last of; a word may begin in the prompt."""
    words = context.request.sampling.bad_words
    if not words:
        return []
    longest = max(len(word) for word in words)
    tail = np.concatenate([context.request.prompt_ids, context.prefix])[-longest:].tolist()
    return [word[-1] for word in words if word and _ends_with(tail, word[:-1])]


def _ends_with(tail: Sequence[int], start: tuple[int, ...]) -> bool:
    return len(tail) >= len(start) and tuple(tail[len(tail) - len(start) :]) == start


def _hidden_stops(context: RowContext) -> list[int]:
    """Stop ids that cannot be served here."""
    asked = context.request.sampling
    if asked.ignore_eos:  # nothing ends the reply before its limit, so min_tokens hides nothing
        is_hidden = context.request.convention.masks_ignored_eos
    else:
        is_hidden = len(context.prefix) < asked.min_tokens
    return list(asked.stop_ids) if is_hidden else []


def _mask(logits: Tensor, tokens: list[int]) -> None:
    known = [token for token in tokens if 0 <= token < len(logits)]
    if known:
        logits[torch.tensor(known, device=logits.device)] = MASKED
