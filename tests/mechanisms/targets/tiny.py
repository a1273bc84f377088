"""Small models of every family with random weights, by transformers and by us, and odd sizes throughout."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import PreTrainedModel
from transformers.models.llama import LlamaConfig, LlamaForCausalLM
from transformers.models.qwen3 import Qwen3Config, Qwen3ForCausalLM
from transformers.models.qwen3_5 import Qwen3_5ForCausalLM, Qwen3_5TextConfig
from transformers.models.qwen3_next import Qwen3NextConfig, Qwen3NextForCausalLM

from lossguard_mechanisms.targets.config import config_from_hf
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.mixing import Mixing
from lossguard_mechanisms.targets.rows import rows_of
from lossguard_mechanisms.targets.stateful import RecurrentSlots, SlotKeyValues, StatefulMixing
from lossguard_mechanisms.targets.weights import target_from_tensors

FAMILIES = ("llama", "qwen3", "qwen3_next", "qwen3_5_text")
HYBRIDS = ("qwen3_next", "qwen3_5_text")

COMMON: dict[str, Any] = {
    "vocab_size": 53,
    "hidden_size": 30,
    "intermediate_size": 37,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 12,
    "max_position_embeddings": 512,
    "rms_norm_eps": 1e-3,  # a row of almost nothing is not blown up into rounding errors
    "attn_implementation": "eager",
}
HYBRID: dict[str, Any] = {
    "layer_types": ["linear_attention", "full_attention", "linear_attention", "linear_attention", "full_attention"],
    "num_hidden_layers": 5,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
    "linear_key_head_dim": 5,
    "linear_value_head_dim": 7,
    "linear_conv_kernel_dim": 4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0, "partial_rotary_factor": 0.5},
}
PLAIN: dict[str, Any] = {
    "num_hidden_layers": 3,
    "rope_parameters": {"rope_type": "default", "rope_theta": 500.0},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """The same weights in transformers' class and in ours."""

    theirs: PreTrainedModel
    ours: Target


def pair(family: str, *, seed: int = 0, tied: bool = False, dtype: torch.dtype = torch.float32) -> Pair:
    """A model of a family with all parameters random, norms and decays too."""
    theirs = their_model(family, seed=seed, tied=tied)
    torch.nn.Module.to(theirs, dtype)
    config = config_from_hf(theirs.config.to_dict())
    return Pair(theirs=theirs, ours=target_from_tensors(config, theirs.state_dict(), dtype=dtype))


def their_model(family: str, *, seed: int = 0, tied: bool = False) -> PreTrainedModel:
    """Transformers' own class in float32 with random weights."""
    torch.manual_seed(seed)
    model: PreTrainedModel
    if family == "llama":
        model = LlamaForCausalLM(LlamaConfig(**COMMON, **PLAIN, tie_word_embeddings=tied))
    elif family == "qwen3":
        model = Qwen3ForCausalLM(Qwen3Config(**COMMON, **PLAIN, tie_word_embeddings=tied))
    elif family == "qwen3_next":
        sizes = {**COMMON, **HYBRID, "num_experts": 0}
        model = Qwen3NextForCausalLM(Qwen3NextConfig(**sizes, tie_word_embeddings=tied))
    else:
        model = Qwen3_5ForCausalLM(Qwen3_5TextConfig(**COMMON, **HYBRID, tie_word_embeddings=tied))
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("A_log"):
                parameter.copy_(torch.empty_like(parameter).uniform_(0.02, 1.0, generator=generator).log())
            elif parameter.dim() == 1:
                parameter.add_(torch.empty_like(parameter).normal_(0.0, 0.3, generator=generator))
            else:
                parameter.normal_(0.0, 1.5 * parameter.shape[-1] ** -0.5, generator=generator)
    model.train(mode=False)
    return model


def random_ids(num_tokens: int, *, seed: int) -> Tensor:
    """Token ids [N]."""
    return torch.randint(0, COMMON["vocab_size"], (num_tokens,), generator=torch.Generator().manual_seed(seed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """States of a few sequences."""

    recurrent: RecurrentSlots
    key_values: SlotKeyValues


def memory_for(target: Target, *, num_slots: int, capacity: int = 256) -> Memory:
    """Empty states for a target in its dtype."""
    dtype = target.embedding.weight.dtype
    return Memory(
        recurrent=RecurrentSlots(target.config, num_slots, dtype=dtype),
        key_values=SlotKeyValues(target.config, num_slots, capacity, dtype=dtype),
    )


def run_step(target: Target, memory: Memory, parts: dict[int, tuple[Tensor, int]]) -> dict[int, Tensor]:
    """One step: ``parts`` has for each slot the new ids and the number of earlier ones. Logits of every row by slot."""
    slots = list(parts)
    lengths = [len(parts[slot][0]) for slot in slots]
    rows = rows_of(slots, [parts[slot][1] for slot in slots], lengths)
    mixing = StatefulMixing(rows, recurrent=memory.recurrent, key_values=memory.key_values)
    ids = torch.cat([parts[slot][0] for slot in slots])
    logits = logits_of(target, ids, rows.positions, mixing)
    return dict(zip(slots, logits.split(lengths), strict=True))


def run_in_chunks(target: Target, memory: Memory, slot: int, ids: Tensor, lengths: Sequence[int]) -> Tensor:
    """One sequence alone, in steps of the given lengths: logits of every row."""
    begun, outputs = 0, []
    for length in lengths:
        outputs.append(run_step(target, memory, {slot: (ids[begun : begun + length], begun)})[slot])
        begun += length
    assert begun == len(ids), "the lengths add up to the sequence"
    return torch.cat(outputs)


def logits_of(target: Target, ids: Tensor, positions: Tensor, mixing: Mixing) -> Tensor:
    """Logits of every row."""
    with torch.no_grad():
        return target.logits(target(ids, positions, mixing).hidden)
