"""Recurrent slots whose single tokens go through kernels that change the states where they lie."""

from __future__ import annotations

from torch import Tensor

from lossguard_mechanisms.engine.convolution_kernel import convolve_step_in_place
from lossguard_mechanisms.engine.delta_kernel import delta_step_in_place
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.targets.rows import Rows
from lossguard_mechanisms.targets.stateful import RecurrentSlots


class KernelSlots(RecurrentSlots):
    """See ``RecurrentSlots``; chunks of several tokens are its own."""

    def convolve(self, layer: int, rows: Rows, channels: Tensor, weight: Tensor) -> Tensor:
        """See ``RecurrentSlots``."""
        if rows.longest > 1:
            return super().convolve(layer, rows, channels, weight)
        return convolve_step_in_place(channels, weight, self.conv[self.place_of(layer)], rows.slots)

    def recur(self, layer: int, rows: Rows, inputs: DeltaInputs) -> Tensor:
        """See ``RecurrentSlots``."""
        if rows.longest > 1:
            return super().recur(layer, rows, inputs)
        return delta_step_in_place(inputs, self.recurrent[self.place_of(layer)], rows.slots)
