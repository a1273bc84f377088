"""The decode part of a step: draft, build a tree, and after the target's pass accept, commit and tell the drafter.

Tensors only, and no answer from the device is needed in between, so that a CUDA graph can hold all of it.
"""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard_mechanisms.drafters.base import Drafter
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.engine.commit import TreeStash, commit, new_stash
from lossguard_mechanisms.engine.memory import Memory
from lossguard_mechanisms.engine.mixings import CommittedMixing, TreeMixing
from lossguard_mechanisms.engine.sequence import Sequence
from lossguard_mechanisms.engine.speculation import Acceptance, Policy
from lossguard_mechanisms.engine.verification import DeltaArithmetic, delta_arithmetic
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.mixing import Mixing
from lossguard_mechanisms.targets.rows import Rows
from lossguard_mechanisms.trees.tree import Path, Tree, chain


@dataclass(frozen=True, slots=True, kw_only=True)
class Speculation:
    """The stages of a step that can be exchanged."""

    drafter: Drafter
    policy: Policy
    acceptance: Acceptance


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """What a captured step needs to sample; rows of one sequence differ in their positions alone."""

    keys: Tensor  # [B] int64, of the requests
    temperatures: Tensor  # [B] float64, 0 for greedy ones


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeInputs:
    """B sequences, each with an anchor: a token that was chosen and is not in the state yet."""

    anchors: Tensor  # [B] int64
    slots: Tensor  # [B] int64, all different except for padding
    past_lengths: Tensor  # [B] int64
    block_table: Tensor  # [B, pages] int64, ends filled with the spare page
    longest_context: int
    """At least past length + nodes of every sequence."""
    draws: Draws | None = None
    """None: all are greedy, or the host samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedDecode:
    """What the target is to run, and what the commit needs afterwards."""

    inputs: DecodeInputs
    tree: Tree
    rows: Rows
    mixing: Mixing
    stash: TreeStash | None  # None: the mixing commits as it goes, the tree is the anchor alone

    @property
    def ids(self) -> Tensor:
        """Tokens of all rows [B * N]."""
        return self.tree.tokens.flatten()


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodedStep:
    """What a step gave each sequence, on the host."""

    tokens: list[list[int]]  # past ``sizes`` meaningless
    sizes: list[int]
    refused: list[bool]  # see ``trees.tree.has_refused``


class DecodeStage:
    """Decoding with or without speculation; without, the tree is the anchor alone and is always accepted."""

    def __init__(self, config: TargetConfig, memory: Memory, speculation: Speculation | None) -> None:
        self._config = config
        self._memory = memory
        self._speculation = speculation
        self._arithmetic: DeltaArithmetic | None = None
        if memory.sizes.acceleration.is_compiled:
            self._arithmetic = torch.compile(delta_arithmetic, dynamic=True, fullgraph=True)
        self.num_nodes = 1 if speculation is None else speculation.policy.num_nodes
        self.capture = () if speculation is None else speculation.drafter.feature_layers

    def begin(self, sequence: Sequence) -> None:
        """Told of a sequence before its first prompt token is read."""

    def first_tokens(self, sequences: Several[Sequence], chosen: Tensor) -> Tensor:
        """The first token [B] of each reply, given the one that the target chose after the prompt."""
        del sequences
        return chosen

    def prepare(self, inputs: DecodeInputs) -> PreparedDecode:
        """Draft and lay out the step; changes no state."""
        memory, speculation = self._memory, self._speculation
        if speculation is None:
            rows = _single_rows(inputs)
            layout = memory.key_values.layout(rows, inputs.block_table, is_decode=True)
            mixing: Mixing = CommittedMixing(rows, layout, recurrent=memory.recurrent, key_values=memory.key_values)
            tree = chain(inputs.anchors, inputs.anchors.new_empty((inputs.anchors.shape[0], 0)))
            return PreparedDecode(inputs=inputs, tree=tree, rows=rows, mixing=mixing, stash=None)
        assert memory.drafter_state is not None, "a drafter has its state in the memory"
        lattice = speculation.drafter.draft(
            memory.drafter_state, _single_rows(inputs), inputs.anchors, num_depths=speculation.policy.num_depths
        )
        return self._prepare_tree(inputs, self._tree(inputs, lattice))

    def _tree(self, inputs: DecodeInputs, lattice: Lattice) -> Tree:
        assert self._speculation is not None, "without speculation there is no lattice"
        return self._speculation.policy.build(lattice, inputs.anchors)

    def settle(self, prepared: PreparedDecode, chosen: Tensor, features: tuple[Tensor, ...]) -> Path:
        """Accept and commit. ``chosen`` [B, N] is the target's token after each node, ``features`` those captured."""
        speculation, tree = self._speculation, prepared.tree
        if speculation is None or prepared.stash is None:
            ones = torch.ones_like(prepared.inputs.anchors)
            return Path(nodes=torch.zeros_like(chosen), num_nodes=ones, emitted=chosen)
        path = speculation.acceptance.walk(tree, chosen)
        self._commit(prepared.stash, path)
        memory = self._memory
        assert memory.drafter_state is not None, "a drafter has its state in the memory"
        speculation.drafter.extend(
            memory.drafter_state,
            _path_rows(prepared, path),
            tree.tokens.gather(1, path.nodes).flatten(),
            _features_on_path(tree, path, features),
        )
        return path

    def _commit(self, stash: TreeStash, path: Path) -> None:
        memory = self._memory
        commit(stash, path, recurrent=memory.recurrent, key_values=memory.key_values)

    def extend_with_prompt(self, rows: Rows, ids: Tensor, features: tuple[Tensor, ...]) -> None:
        """Tell the drafter of prompt rows, which are committed."""
        if self._speculation is not None and self._memory.drafter_state is not None:
            self._speculation.drafter.extend(self._memory.drafter_state, rows, ids, torch.cat(features, dim=-1))

    def _prepare_tree(self, inputs: DecodeInputs, tree: Tree) -> PreparedDecode:
        memory = self._memory
        rows = Rows(
            slots=inputs.slots,
            past_lengths=inputs.past_lengths,
            lengths=torch.full_like(inputs.slots, tree.num_nodes),
            positions=tree.positions(inputs.past_lengths).flatten(),
            longest=tree.num_nodes,
            longest_context=inputs.longest_context,
            places=None,
        )
        ancestors = None if tree.is_chain else tree.ancestors
        layout = memory.key_values.layout(rows, inputs.block_table, ancestors=ancestors, is_decode=True)
        stash = new_stash(rows, tree, layout, self._config, memory.sizes.dtype)
        mixing = TreeMixing(
            stash, recurrent=memory.recurrent, key_values=memory.key_values, arithmetic=self._arithmetic
        )
        return PreparedDecode(inputs=inputs, tree=tree, rows=rows, mixing=mixing, stash=stash)


def _single_rows(inputs: DecodeInputs) -> Rows:
    return Rows(
        slots=inputs.slots,
        past_lengths=inputs.past_lengths,
        lengths=torch.ones_like(inputs.slots),
        positions=inputs.past_lengths,
        longest=1,
        longest_context=inputs.longest_context,
        places=None,
    )


def _path_rows(prepared: PreparedDecode, path: Path) -> Rows:
    inputs, length = prepared.inputs, path.nodes.shape[1]
    steps = torch.arange(length, device=path.nodes.device)
    return Rows(
        slots=inputs.slots,
        past_lengths=inputs.past_lengths,
        lengths=path.num_nodes,
        positions=(inputs.past_lengths[:, None] + steps).flatten(),
        longest=length,
        longest_context=inputs.longest_context,
        places=None,
    )


def _features_on_path(tree: Tree, path: Path, features: tuple[Tensor, ...]) -> Tensor:
    """[B * L, layers * hidden]"""
    joined = torch.cat(features, dim=-1)
    if tree.is_chain:
        return joined
    by_tree: Tensor = joined.unflatten(0, (-1, tree.num_nodes))
    return by_tree.gather(1, path.nodes[..., None].expand(-1, -1, joined.shape[-1])).flatten(0, 1)
