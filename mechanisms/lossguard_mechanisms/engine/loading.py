"""From options to a core that is ready to serve."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch

from lossguard.engines.model_facts import ModelFacts
from lossguard_mechanisms.drafters.loading import load_drafter
from lossguard_mechanisms.engine.acceleration import Acceleration, kernels_fit
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.decoding import DecodeStage, Speculation
from lossguard_mechanisms.engine.fused_target import FusedTarget
from lossguard_mechanisms.engine.graphs import DecodeGraphs
from lossguard_mechanisms.engine.memory import Memory, MemorySizes
from lossguard_mechanisms.engine.model import ServedModel
from lossguard_mechanisms.engine.options import (
    EmbeddedOptions,
    resolve_cache_tokens,
    resolve_device,
    resolve_dtype,
    resolve_packing,
)
from lossguard_mechanisms.engine.packed_target import PackedTarget
from lossguard_mechanisms.engine.speculation import SampleAndMatch
from lossguard_mechanisms.engine.tree_options import resolve_policy
from lossguard_mechanisms.engine.w12_target import convert_target
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.weights import load_target


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemSpec:
    """One system: what to load and how to serve it."""

    name: str
    model_path: str
    options: EmbeddedOptions
    facts: ModelFacts


class StageMaker(Protocol):
    """Makes the decode stage of a core: ``DecodeStage``, or one that does something else on purpose."""

    def __call__(self, config: TargetConfig, memory: Memory, speculation: Speculation | None, /) -> DecodeStage: ...


def load_core(spec: SystemSpec, *, make_stage: StageMaker = DecodeStage) -> EngineCore:
    """Load the target, and the drafter if there is one.

    Raises what ``targets.weights.load_target``, ``w12_target.convert_target``, ``drafters.loading.load_drafter`` and
    ``tree_options.resolve_policy`` do.
    """
    options = spec.options
    device = torch.device(resolve_device(options)[0])
    dtype_name, _ = resolve_dtype(options, spec.facts)
    dtype: torch.dtype = getattr(torch, dtype_name)
    target = load_target(Path(spec.model_path), dtype=dtype, device=device).target
    conversion = convert_target(target) if options.weights == "w12" else None
    has_kernels, _ = kernels_fit(target.config, dtype=dtype, device=device)
    speculation = _speculation(target, options, has_kernels=has_kernels)
    acceleration = Acceleration(has_kernels=has_kernels, is_compiled=options.compiled and device.type == "cuda")
    sizes = memory_sizes(spec, dtype=dtype, device=device, num_nodes=_num_nodes(speculation))
    memory = Memory(
        target.config,
        replace(sizes, acceleration=acceleration),
        drafter=None if speculation is None else speculation.drafter,
    )
    is_packed, _ = resolve_packing(options, dtype=dtype_name, device=device.type)
    model: ServedModel = PackedTarget(target) if is_packed else target
    if memory.sizes.acceleration.is_compiled:
        model = FusedTarget(target)
    stage = make_stage(target.config, memory, speculation)
    graphs = DecodeGraphs(model, memory, stage) if options.cuda_graphs and device.type == "cuda" else None
    core = EngineCore(model, memory, prefill_chunk=options.prefill_chunk, stage=stage, graphs=graphs)
    core.conversion = conversion
    return core


def memory_sizes(spec: SystemSpec, *, dtype: torch.dtype, device: torch.device, num_nodes: int) -> MemorySizes:
    """Slots and pages by the options; a sequence may be as long as the model's context."""
    tokens, _ = resolve_cache_tokens(spec.options, spec.facts)
    page_size = spec.options.page_size
    surplus = num_nodes  # the verification after a reply's last token but one writes so many rows at most
    longest = min(tokens, spec.facts.max_positions or tokens) + surplus
    return MemorySizes(
        num_slots=spec.options.slots,
        num_pages=-(-(tokens + surplus) // page_size),
        page_size=page_size,
        capacity=longest,
        num_surplus=surplus,
        dtype=dtype,
        device=device,
    )


def _speculation(target: Target, options: EmbeddedOptions, *, has_kernels: bool) -> Speculation | None:
    if options.drafter is None:
        return None
    drafter = load_drafter(Path(options.drafter), target)
    policy, _ = resolve_policy(options, vocab_size=target.config.vocab_size, has_kernel=has_kernels)
    return Speculation(drafter=drafter, policy=policy, acceptance=SampleAndMatch())


def _num_nodes(speculation: Speculation | None) -> int:
    return 1 if speculation is None else speculation.policy.num_nodes
