"""Targets of released models' shapes with drafters, and engines over them that replay a recording: for times only."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from lossguard.records import Request, SamplingParams
from lossguard_mechanisms.drafters.fresh import AnyDrafter
from lossguard_mechanisms.drafters.lattice import TOP_K
from lossguard_mechanisms.engine.acceleration import Acceleration, kernels_fit
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.decoding import Speculation
from lossguard_mechanisms.engine.fused_target import FusedTarget
from lossguard_mechanisms.engine.graphs import DecodeGraphs
from lossguard_mechanisms.engine.memory import Memory, MemorySizes
from lossguard_mechanisms.engine.model import ServedModel
from lossguard_mechanisms.engine.replayed import ReplayedStage, ReplayTable
from lossguard_mechanisms.engine.shapes import TARGETS, drafter_of_shape, drafter_shape, target_of_shape
from lossguard_mechanisms.engine.speculation import ChainPolicy, SampleAndMatch
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.trees.choice import LatticeSizes, TreeOrder, policy_for
from lossguard_mechanisms.trees.names import CHAIN

DTYPE = torch.bfloat16
PAGE_SIZE = 64
CAPACITY = 1024  # positions of a sequence
NUM_PROMPT = 256
PLAIN, TREE = "plain", "tree"
SIDES = (PLAIN, CHAIN, TREE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A shape of ``engine.shapes``, how far its drafter drafts, and by which trees beside the chain."""

    shape: str
    num_drafts: int = 7
    policy: str = CHAIN
    num_nodes: int = 16  # drafted tokens of a tree
    is_compiled: bool = False
    temperature: float = 0.0
    """Over 0 every step draws, in graphs of their own; the recording is to be of the same temperature."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """One shape on one device with what all sides share."""

    shape: str
    target: Target
    model: ServedModel
    chain: Speculation
    tree: Speculation | None
    device: torch.device
    acceleration: Acceleration
    temperature: float = 0.0

    @property
    def sides(self) -> dict[str, Speculation | None]:
        """What each of ``SIDES`` speculates with."""
        return dict(zip(SIDES, (None, self.chain, self.tree), strict=True))

    def requests(self, table: ReplayTable, tokens: int | None = None) -> list[Request]:
        """One with a random prompt for each recorded sequence, of so many tokens, or as long as there is room."""
        draw = torch.Generator().manual_seed(2)
        shape = (len(table.request_ids), NUM_PROMPT)
        prompts = torch.randint(0, self.target.config.vocab_size, shape, generator=draw).tolist()
        longest = CAPACITY - NUM_PROMPT - self.num_surplus
        return [
            Request(
                id=name,
                prompt_ids=tuple(prompt),
                sampling=SamplingParams(
                    max_tokens=tokens or min(length, longest), ignore_eos=True, temperature=self.temperature
                ),
                set="bench",
                cluster=name,
            )
            for name, prompt, length in zip(table.request_ids, prompts, table.lengths, strict=True)
        ]

    @property
    def num_surplus(self) -> int:
        """Rows past a reply's end that a verification may write."""
        return max(item.policy.num_nodes for item in (self.chain, self.tree) if item is not None)

    def core(self, table: ReplayTable, batch: int, speculation: Speculation | None) -> EngineCore:
        """An engine of ``batch`` slots on the shared weights; on a CUDA device all graphs are captured now."""
        sizes = MemorySizes(
            num_slots=batch,
            num_pages=batch * (CAPACITY // PAGE_SIZE),
            page_size=PAGE_SIZE,
            capacity=CAPACITY,
            num_surplus=1 if speculation is None else speculation.policy.num_nodes,
            dtype=DTYPE,
            device=self.device,
            acceleration=self.acceleration,
        )
        memory = Memory(self.target.config, sizes, drafter=None if speculation is None else speculation.drafter)
        stage = ReplayedStage(self.target.config, memory, speculation, table)
        graphs = DecodeGraphs(self.model, memory, stage) if self.device.type == "cuda" else None
        if graphs is not None:
            # Or a step in which a context crosses a tier would be timed with a capture.
            graphs.capture(batch, is_sampled=self.temperature > 0.0)
        return EngineCore(self.model, memory, prefill_chunk=batch * NUM_PROMPT, stage=stage, graphs=graphs)


def make_setting(choice: Choice, device: torch.device) -> Setting:
    """Target, drafter and what accelerates them."""
    config: TargetConfig = TARGETS[choice.shape]
    target = target_of_shape(config, dtype=DTYPE, device=device)
    drafter = drafter_of_shape(drafter_shape(choice.shape, num_depths=choice.num_drafts), target)
    has_kernels, _ = kernels_fit(config, dtype=DTYPE, device=device)
    return Setting(
        shape=choice.shape,
        target=target,
        model=FusedTarget(target) if choice.is_compiled else target,
        chain=Speculation(drafter=drafter, policy=ChainPolicy(choice.num_drafts), acceptance=SampleAndMatch()),
        tree=None if choice.policy == CHAIN else _tree_of(drafter, config, choice, has_kernel=has_kernels),
        device=device,
        acceleration=Acceleration(has_kernels=has_kernels, is_compiled=choice.is_compiled),
        temperature=choice.temperature,
    )


def _tree_of(drafter: AnyDrafter, config: TargetConfig, choice: Choice, *, has_kernel: bool) -> Speculation:
    candidates = min(TOP_K, config.vocab_size)
    sizes = LatticeSizes(drafter=drafter.name, num_depths=choice.num_drafts, num_candidates=candidates)
    order = TreeOrder(policy=choice.policy, num_nodes=choice.num_nodes)
    policy, _ = policy_for(order, sizes, has_kernel=has_kernel)
    return Speculation(drafter=drafter, policy=policy, acceptance=SampleAndMatch())
