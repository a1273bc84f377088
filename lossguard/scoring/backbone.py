"""Runs the base model of a causal LM for hidden states, never its head, with a key-value cache where arms share."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lossguard.errors import ScorerError

_CACHEABLE_LAYERS: Final = frozenset({"full_attention", "sliding_attention"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix:
    """Key-value states of a batch: row ``r`` holds its tokens at the places ``starts[r] : starts[r] + lengths[r]``."""

    cache: DynamicCache
    starts: Tensor  # [R] int64
    lengths: Tensor  # [R] int64


@dataclass(frozen=True, slots=True, kw_only=True)
class Continuation:
    """Rows of a prefix to go on from, one per row of the next batch."""

    prefix: Prefix
    parents: Tensor  # [R] int64 rows of the prefix
    keep: bool  # whether the tails' own states are to be continued in turn


class Backbone:
    """The base model with its cache conventions."""

    def __init__(self, model: nn.Module) -> None:
        base = model.base_model
        if base is model or not isinstance(base, nn.Module):
            raise ScorerError(
                f"{type(model).__name__} has no base model apart from its head",
                why="hidden states before the head are what the FP32 head needs",
                fix="score this model through its server",
                code="LG0503",
            )
        self._base = base
        parameters = inspect.signature(base.forward).parameters
        self._parameters = frozenset(parameters)
        self._cache_name = "cache" if "cache" in parameters else "past_key_values"
        self._config: Any = model.config
        self.num_embeddings = int(model.get_input_embeddings().weight.shape[0])  # type: ignore[operator]
        self.device: torch.device = model.get_input_embeddings().weight.device  # type: ignore[operator]

    def why_no_cache(self) -> str | None:
        """Why prefixes cannot be shared through a cache, from what the model declares; None if they can."""
        needed = {self._cache_name, "position_ids", "attention_mask", "use_cache"}
        if not needed <= self._parameters:
            return f"the base model takes no {', '.join(sorted(needed - self._parameters))}"
        text_config = self._config.get_text_config() if hasattr(self._config, "get_text_config") else self._config
        odd = set(getattr(text_config, "layer_types", None) or ()) - _CACHEABLE_LAYERS
        if not odd:
            return None
        return f"layers of type {', '.join(sorted(odd))} keep no cache that can be expanded"

    def run(self, tokens: Tensor) -> Tensor:
        """Hidden states [R, L, D] of right-padded tokens [R, L].

        Padding needs no mask: it lies behind every real token, and attention is causal. Without a mask the fastest
        attention kernels apply.
        """
        hidden: Tensor = self._base(input_ids=tokens, use_cache=False).last_hidden_state
        return hidden

    def run_keeping(self, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Prefix]:
        """As ``run``, and the key-value states to continue from."""
        cache = DynamicCache()
        hidden: Tensor = self._base(input_ids=tokens, use_cache=True, **{self._cache_name: cache}).last_hidden_state
        return hidden, Prefix(cache=cache, starts=torch.zeros_like(lengths), lengths=lengths)

    def run_from(self, continuation: Continuation, tokens: Tensor, lengths: Tensor) -> tuple[Tensor, Prefix | None]:
        """Hidden states [R, L, D] of right-padded tails, each after its parent's tokens.

        Every row's prefix is moved so that it ends where the tail starts (left-padded), because sliding windows are
        counted in places of the cache.
        """
        before = continuation.prefix.lengths[continuation.parents]
        width = int(before.max())
        places = torch.arange(width, device=tokens.device)[None, :]
        shift = width - before
        source = (continuation.prefix.starts[continuation.parents] - shift)[:, None] + places
        cache = _expanded(continuation, source.clamp_(min=0))
        tail = torch.arange(tokens.shape[1], device=tokens.device)[None, :]
        mask = torch.cat([places >= shift[:, None], torch.ones_like(tokens, dtype=torch.bool)], dim=1)
        arguments = {"attention_mask": mask.long(), "position_ids": before[:, None] + tail, self._cache_name: cache}
        hidden: Tensor = self._base(input_ids=tokens, use_cache=True, **arguments).last_hidden_state
        own = Prefix(cache=cache, starts=shift, lengths=before + lengths) if continuation.keep else None
        return hidden, own


class _TailLayer(DynamicLayer):
    """One layer's states of a shared prefix, expanded only while that layer runs.

    So the expanded states of all layers never exist at once, unless ``keep`` asks for them to go on from.
    """

    def __init__(self, shared: tuple[Tensor, Tensor], rows: Tensor, source: Tensor, *, keep: bool) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._shared_keys, self._shared_values = shared
        device = self._shared_keys.device
        self._index = (rows.to(device)[:, None], slice(None), source.to(device))  # [R, 1], all heads, [R, P]
        self._keep = keep
        self._seen = int(source.shape[1])

    def update(self, key_states: Tensor, value_states: Tensor, *_: object, **__: object) -> tuple[Tensor, Tensor]:
        """All keys and values [R, H, P + L, D] of the layer."""
        keys = torch.cat([self._shared_keys[self._index].transpose(1, 2), key_states], dim=-2)
        values = torch.cat([self._shared_values[self._index].transpose(1, 2), value_states], dim=-2)
        self._seen = int(keys.shape[-2])
        if self._keep:
            self.keys, self.values, self.is_initialized = keys, values, True
        return keys, values

    def get_seq_length(self) -> int:
        """Places before the next token."""
        return self._seen


def _expanded(continuation: Continuation, source: Tensor) -> DynamicCache:
    """A cache whose row ``r`` starts with the places ``source[r]`` of its parent. Layers without states stay so."""
    cache = DynamicCache()
    layers: list[Any] = []
    for layer in continuation.prefix.cache.layers:
        if isinstance(layer, DynamicLayer) and layer.keys is not None and layer.values is not None:
            shared = (layer.keys, layer.values)
            layers.append(_TailLayer(shared, continuation.parents, source, keep=continuation.keep))
        else:
            layers.append(DynamicLayer())
    cache.layers = layers
    return cache


def padded(rows: Sequence[Any], device: torch.device) -> tuple[Tensor, Tensor]:
    """Right-padded tokens [R, L] and lengths [R] on the device, from numpy rows."""
    lengths = torch.tensor([len(row) for row in rows], dtype=torch.int64)
    tokens = torch.zeros(len(rows), int(lengths.max()), dtype=torch.int64)
    for index, row in enumerate(rows):
        tokens[index, : len(row)] = torch.from_numpy(row)
    return tokens.to(device), lengths.to(device)
