"""Which requests share a batch, and the tensors of one batch."""

from __future__ import annotations

import dataclasses
import hashlib
import secrets
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from lossguard.engines.base import ForcedPrefix
from lossguard.engines.transformers_options import TransformersOptions
from lossguard.records import Request, SamplingParams


def plan_batches(requests: Sequence[Request], options: TransformersOptions) -> list[tuple[Request, ...]]:
    """Batches of at most ``batch_size``; requests of one batch ask the same of the sampler, seeds aside.

    Order ``request`` keeps the order given; ``length`` sorts by prompt length first (ties keep their order).
    """
    ordered = list(requests)
    if options.order == "length":
        ordered.sort(key=lambda request: len(request.prompt_ids))
    groups: dict[SamplingParams, list[Request]] = {}
    for request in ordered:
        groups.setdefault(dataclasses.replace(request.sampling, seed=None), []).append(request)
    size = options.batch_size
    return [tuple(group[at : at + size]) for group in groups.values() for at in range(0, len(group), size)]


def forced_batches(batch: Sequence[ForcedPrefix]) -> list[list[int]]:
    """Indices of replies that may be decoded together: what ``plan_batches`` groups by, lengths aside."""
    groups: dict[SamplingParams, list[int]] = {}
    for index, prefix in enumerate(batch):
        key = dataclasses.replace(prefix.request.sampling, seed=None, max_tokens=1, logprobs=0)
        groups.setdefault(key, []).append(index)
    return list(groups.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class PaddedBatch:
    """Left-padded prompts. ``input_ids`` and ``attention_mask`` are int64 [B, prompt_length]."""

    input_ids: torch.Tensor
    attention_mask: torch.Tensor

    @property
    def prompt_length(self) -> int:
        """Columns before the first generated token."""
        return int(self.input_ids.shape[1])


def pad_prompts(prompts: Sequence[Sequence[int]], *, pad_id: int, multiple: int, device: str) -> PaddedBatch:
    """Pad on the left to the longest prompt, rounded up to ``multiple``."""
    length = -(-max(len(prompt) for prompt in prompts) // multiple) * multiple
    ids = [[pad_id] * (length - len(prompt)) + list(prompt) for prompt in prompts]
    mask = [[0] * (length - len(prompt)) + [1] * len(prompt) for prompt in prompts]
    return PaddedBatch(
        input_ids=torch.tensor(ids, dtype=torch.int64, device=device),
        attention_mask=torch.tensor(mask, dtype=torch.int64, device=device),
    )


def batch_seed(requests: Sequence[Request]) -> int:
    """One 63-bit seed for a sampled batch: from its requests' ids, repeats and seeds.

    Without any seed it is drawn afresh. Requests that share a seed must not draw the same random numbers, so
    the ids are part of it; the same batch with the same seeds is served the same again.
    """
    if all(request.sampling.seed is None for request in requests):
        return secrets.randbits(63)
    digest = hashlib.blake2b(digest_size=8)
    for request in requests:
        digest.update(repr((request.id, request.repeat_id, request.sampling.seed)).encode())
    return int.from_bytes(digest.digest(), "big") >> 1
