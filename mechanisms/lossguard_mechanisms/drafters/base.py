"""What an engine asks of a drafter. A drafter has weights and no memory; its state is the caller's, like a target's."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.drafters.state import DrafterState
from lossguard_mechanisms.targets.rows import Rows

__all__ = ["Drafter", "DrafterState", "Lattice"]


class Drafter(Protocol):
    """A module with weights that follow a target's. N rows, B sequences, H the target's width, L features."""

    @property
    def name(self) -> str:
        """``dflash2``, ``dspark`` or ``eagle3``."""

    @property
    def num_depths(self) -> int:
        """D: positions that it can name candidates for, 7 for a block of 8."""

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """The L layers of the target, counted from 0, to give to ``Target.forward(capture=...)``."""

    def new_state(
        self, num_slots: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str
    ) -> DrafterState:
        """An empty state for ``num_slots`` sequences of at most ``capacity`` committed tokens."""

    def extend(self, state: DrafterState, rows: Rows, ids: Tensor, features: Tensor) -> None:
        """Take committed rows: ids [N] int64 and the target's features at them, [N, L * H] in ``feature_layers`` order.

        Where ``rows.places`` is None, N is B * longest and ``rows.lengths`` may be smaller than ``longest``: surplus
        rows at a sequence's end are passed over (their places in the state are written, never seen, and need
        capacity).
        """

    def draft(self, state: DrafterState, rows: Rows, anchors: Tensor, *, num_depths: int | None = None) -> Lattice:
        """Candidates after ``anchors`` [B], the tokens chosen last; changes no state.

        ``rows`` has one row per sequence at the anchor's position, which is also its past length: the anchor's
        features do not exist yet. ``num_depths`` (None: all) asks for fewer depths.
        """
