"""What the engine asks of a target: ``targets.decoder.Target``, or the same weights laid out for a device."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from torch import Tensor

from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.decoder import StepOutput
from lossguard_mechanisms.targets.mixing import Mixing


class ServedModel(Protocol):
    """Weights without memory."""

    @property
    def config(self) -> TargetConfig:
        """Shapes and arithmetic."""

    def __call__(self, ids: Tensor, positions: Tensor, mixing: Mixing, *, capture: Sequence[int] = ()) -> StepOutput:
        """Run N rows, see ``Target.forward``."""

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [N, vocabulary] of rows of ``StepOutput.hidden``."""
