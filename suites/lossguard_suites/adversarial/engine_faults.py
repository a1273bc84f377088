"""Faults planted in the embedded engine itself: its real drafts, its real states, and one thing wrong.

The other faults of this suite lay a schedule of drafts over plain decoding; here a decode stage of the engine is
replaced by one that mishandles what a drafter and a tree really gave. As a system of a configuration:

    engine = "lossguard_suites.adversarial.engine_faults:create"
    fault = "kept-drafts"            # one of STAGES
    drafter = "..."                  # and the other options of the engine ``embedded``
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Final

import torch
from torch import Tensor

from lossguard.engines.base import EngineSpec
from lossguard.engines.options import bad_option
from lossguard.errors import near_miss
from lossguard_mechanisms.engine.adapter import EmbeddedEngine
from lossguard_mechanisms.engine.commit import TreeStash, commit_key_values, commit_states
from lossguard_mechanisms.engine.decoding import DecodeInputs, DecodeStage, PreparedDecode, Speculation
from lossguard_mechanisms.engine.loading import load_core
from lossguard_mechanisms.engine.memory import Memory
from lossguard_mechanisms.engine.sequence import Sequence
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.trees.tree import Path, Tree


class ForgottenDrafts(DecodeStage):
    """F1. Recurrent states take the anchor of a step, and none of the drafts that it accepted."""

    def _commit(self, stash: TreeStash, path: Path) -> None:
        commit_key_values(stash, path, self._memory.key_values)
        commit_states(stash, replace(path, num_nodes=torch.ones_like(path.num_nodes)), self._memory.recurrent)


class KeptDraft(DecodeStage):
    """F2. The first draft below an accepted path stays in the recurrent states, though the target refused it."""

    most_kept = 1

    def _commit(self, stash: TreeStash, path: Path) -> None:
        commit_key_values(stash, path, self._memory.key_values)
        commit_states(stash, with_refused(stash.tree, path, self.most_kept), self._memory.recurrent)


class KeptDrafts(KeptDraft):
    """F3. All drafts below an accepted path stay, as deep as the tree goes."""

    most_kept = 64


class LatePositions(DecodeStage):
    """F23. Positions go on by one a step, whatever was accepted: they fall behind by all accepted drafts so far.

    One step that is one late, as the suite's schedule plants it, moves nothing but near-ties in a hybrid most of whose
    layers know no positions (docs/trees.md).
    """

    def __init__(self, config: TargetConfig, memory: Memory, speculation: Speculation | None) -> None:
        super().__init__(config, memory, speculation)
        self._behind = torch.zeros(memory.sizes.num_slots + 1, dtype=torch.int64, device=memory.sizes.device)

    def begin(self, sequence: Sequence) -> None:
        """See ``DecodeStage``."""
        self._behind[sequence.slot] = 0

    def prepare(self, inputs: DecodeInputs) -> PreparedDecode:
        """See ``DecodeStage``."""
        prepared = super().prepare(inputs)
        positions = prepared.rows.positions.unflatten(0, (len(inputs.slots), -1)) - self._behind[inputs.slots, None]
        return replace(prepared, rows=replace(prepared.rows, positions=positions.flatten()))

    def settle(self, prepared: PreparedDecode, chosen: Tensor, features: tuple[Tensor, ...]) -> Path:
        """See ``DecodeStage``."""
        path = super().settle(prepared, chosen, features)
        self._behind[prepared.inputs.slots] += path.num_nodes - 1
        return path


class UnverifiedDraft(DecodeStage):
    """F24. The first draft of every step is served, whatever the target chose."""

    def settle(self, prepared: PreparedDecode, chosen: Tensor, features: tuple[Tensor, ...]) -> Path:
        """See ``DecodeStage``."""
        served = torch.cat((prepared.tree.tokens[:, 1:2], chosen[:, 1:]), dim=1)
        return super().settle(prepared, served, features)


class OverwrittenPage(DecodeStage):
    """F27. A path of four nodes or more writes its keys and values over the sequence's first page as well."""

    least_nodes = 4

    def _commit(self, stash: TreeStash, path: Path) -> None:
        super()._commit(stash, path)
        for row, size in enumerate(path.num_nodes.tolist()):
            if size >= self.least_nodes:
                self._overwrite(stash, row, size)

    def _overwrite(self, stash: TreeStash, row: int, size: int) -> None:
        store = self._memory.key_values
        size = min(size, store.page_size)
        places = int(stash.layout.starts[row]) + torch.arange(size, device=stash.layout.table.device)
        pages, first = stash.layout.table[row, places // store.page_size], stash.layout.table[row, 0]
        store.forget()  # or steps would go on reading what lay there
        for pool in (store.keys, store.values):
            pool[:, first, :, :size] = pool[:, pages, :, places % store.page_size].movedim(0, 2)


STAGES: Final[Mapping[str, type[DecodeStage]]] = {
    "none": DecodeStage,
    "forgotten-drafts": ForgottenDrafts,
    "kept-drafts": KeptDraft,
    "kept-drafts-always": KeptDrafts,
    "late-positions": LatePositions,
    "unverified-draft": UnverifiedDraft,
    "overwritten-page": OverwrittenPage,
}
"""By the names of ``docs/faults.md``; ``none`` is the engine as it is, the control."""


def create(spec: EngineSpec) -> EmbeddedEngine:
    """The engine with the fault that the option ``fault`` names. Raises UsageError LG0204 for another name."""
    name = str(spec.options.get("fault", ""))
    if name not in STAGES:
        raise bad_option(spec.name, f"has fault = {name!r}. {near_miss(name, STAGES)}")
    options = {key: value for key, value in spec.options.items() if key != "fault"}
    options.setdefault("cuda_graphs", False)  # faults look at paths on the host
    return EmbeddedEngine(replace(spec, options=options), load=partial(load_core, make_stage=STAGES[name]))


def with_refused(tree: Tree, path: Path, most: int) -> Path:
    """The path made longer by up to ``most`` nodes that were not accepted, each the first child of the one before."""
    nodes, sizes = path.nodes.clone(), path.num_nodes.clone()
    parents = tree.parents.tolist()
    for row, size in enumerate(path.num_nodes.tolist()):
        last, added = int(nodes[row, size - 1]), 0
        while added < most and size + added < nodes.shape[1] and last in parents[row]:
            last = parents[row].index(last)
            nodes[row, size + added] = last
            added += 1
        sizes[row] = size + added
    return replace(path, nodes=nodes, num_nodes=sizes)
