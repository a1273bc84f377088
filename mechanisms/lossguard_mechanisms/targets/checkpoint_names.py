"""How a target's parameters are named and laid out in a Hugging Face checkpoint.

Every parameter of ours is the rows of one or several tensors of the checkpoint, one after the other, in an order of
our own. The order is a permutation, so that reading and writing are each other's inverse.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_mechanisms.targets.config import DELTA, DeltaShape, TargetConfig


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A tensor of the checkpoint and the number of its rows."""

    name: str
    num_rows: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter of ours: ``cat(sources)[order]``; without an order, as they stand."""

    name: str
    sources: tuple[Source, ...]
    order: Tensor | None = None
    has_middle_dimension: bool = False
    """The checkpoint has a convolution's weight as [C, 1, width], we as [C, width]."""


def parameters_of(config: TargetConfig) -> Iterator[Parameter]:
    """All parameters of a target, in no special order."""
    hidden = config.hidden_size
    yield _plain("embedding.weight", "model.embed_tokens.weight", config.vocab_size)
    yield _plain("norm.weight", "model.norm.weight", hidden)
    if not config.tie_word_embeddings:
        yield _plain("head.weight", "lm_head.weight", config.vocab_size)
    for index, kind in enumerate(config.layer_types):
        ours, theirs = f"layers.{index}", f"model.layers.{index}"
        yield _plain(f"{ours}.mixer_norm.weight", f"{theirs}.input_layernorm.weight", hidden)
        yield _plain(f"{ours}.mlp_norm.weight", f"{theirs}.post_attention_layernorm.weight", hidden)
        yield from _mlp(config, f"{ours}.mlp", f"{theirs}.mlp")
        if kind == DELTA:
            assert config.delta is not None, "a config with delta layers has their sizes"
            yield from _delta(config, config.delta, f"{ours}.mixer", f"{theirs}.linear_attn")
        else:
            yield from _attention(config, f"{ours}.mixer", f"{theirs}.self_attn")


def _plain(ours: str, theirs: str, num_rows: int) -> Parameter:
    return Parameter(name=ours, sources=(Source(name=theirs, num_rows=num_rows),))


def _mlp(config: TargetConfig, ours: str, theirs: str) -> Iterator[Parameter]:
    wide = config.intermediate_size
    sources = tuple(Source(name=f"{theirs}.{name}_proj.weight", num_rows=wide) for name in ("gate", "up"))
    yield Parameter(name=f"{ours}.in_proj.weight", sources=sources)
    yield _plain(f"{ours}.out_proj.weight", f"{theirs}.down_proj.weight", config.hidden_size)


def _attention(config: TargetConfig, ours: str, theirs: str) -> Iterator[Parameter]:
    query = config.num_attention_heads * config.head_dim * (2 if config.family.is_hybrid else 1)
    key = config.num_key_value_heads * config.head_dim
    sources = (
        Source(name=f"{theirs}.q_proj.weight", num_rows=query),
        Source(name=f"{theirs}.k_proj.weight", num_rows=key),
        Source(name=f"{theirs}.v_proj.weight", num_rows=key),
    )
    order = _gate_after_query(config) if config.family.is_hybrid else None
    yield Parameter(name=f"{ours}.in_proj.weight", sources=sources, order=order)
    yield _plain(f"{ours}.out_proj.weight", f"{theirs}.o_proj.weight", config.hidden_size)
    if config.family.has_query_key_norm:
        yield _plain(f"{ours}.query_norm.weight", f"{theirs}.q_norm.weight", config.head_dim)
        yield _plain(f"{ours}.key_norm.weight", f"{theirs}.k_norm.weight", config.head_dim)


def _gate_after_query(config: TargetConfig) -> Tensor:
    """The checkpoint has query and gate head by head; we have all queries, then all gates."""
    num_query = config.num_attention_heads * config.head_dim * 2
    by_head = torch.arange(num_query).view(config.num_attention_heads, 2, config.head_dim)
    num_rows = num_query + 2 * config.num_key_value_heads * config.head_dim
    return torch.cat((by_head.transpose(0, 1).flatten(), torch.arange(num_query, num_rows)))


def _delta(config: TargetConfig, shape: DeltaShape, ours: str, theirs: str) -> Iterator[Parameter]:
    heads = shape.num_value_heads
    if config.model_type == "qwen3_next":
        sizes = {"qkvz": shape.conv_channels + shape.value_channels, "ba": 2 * heads}
        order = _order_of_key_head_groups(shape)
    else:
        sizes = {"qkv": shape.conv_channels, "z": shape.value_channels, "b": heads, "a": heads}
        order = None
    sources = tuple(Source(name=f"{theirs}.in_proj_{name}.weight", num_rows=rows) for name, rows in sizes.items())
    yield Parameter(name=f"{ours}.in_proj.weight", sources=sources, order=order)
    yield Parameter(
        name=f"{ours}.conv",
        sources=(Source(name=f"{theirs}.conv1d.weight", num_rows=shape.conv_channels),),
        has_middle_dimension=True,
    )
    yield _plain(f"{ours}.decay_log", f"{theirs}.A_log", heads)
    yield _plain(f"{ours}.decay_bias", f"{theirs}.dt_bias", heads)
    yield _plain(f"{ours}.norm.weight", f"{theirs}.norm.weight", shape.value_dim)
    yield _plain(f"{ours}.out_proj.weight", f"{theirs}.out_proj.weight", config.hidden_size)


def _order_of_key_head_groups(shape: DeltaShape) -> Tensor:
    """Qwen3-Next has q, k, v, z of one key head after the other, then b, a likewise; we have q, k, v, z, b, a."""
    groups = shape.num_value_heads // shape.num_key_heads
    parts = (shape.key_dim, shape.key_dim, groups * shape.value_dim, groups * shape.value_dim)
    num_wide = shape.num_key_heads * sum(parts)
    by_head = torch.arange(num_wide).view(shape.num_key_heads, -1)
    gates = torch.arange(num_wide, num_wide + 2 * shape.num_value_heads).view(shape.num_key_heads, -1)
    columns = (*by_head.split(parts, dim=1), *gates.split(groups, dim=1))
    return torch.cat([column.flatten() for column in columns])
