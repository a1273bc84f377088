"""The two ways in which a step's rows meet the states: committed at once, or verified and kept apart."""

from __future__ import annotations

from torch import Tensor

from lossguard_kernels.wy_verify.convolution import convolve
from lossguard_kernels.wy_verify.operation import verify
from lossguard_kernels.wy_verify.rows import DeltaRows
from lossguard_mechanisms.engine.commit import KernelStash, TreeStash
from lossguard_mechanisms.engine.pages import PagedKeyValues, PageLayout
from lossguard_mechanisms.engine.verification import DeltaArithmetic, verify_convolution, verify_delta
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.targets.rows import Rows
from lossguard_mechanisms.targets.stateful import RecurrentSlots, read_slots


class CommittedMixing:
    """A ``Mixing`` whose rows are certain, prompt tokens and anchors: states hold them afterwards."""

    def __init__(
        self, rows: Rows, layout: PageLayout, *, recurrent: RecurrentSlots, key_values: PagedKeyValues
    ) -> None:
        self._rows = rows
        self._layout = layout
        self._recurrent = recurrent
        self._key_values = key_values

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See ``Mixing``."""
        return self._key_values.attend(layer, self._layout, query, key, value)

    def convolve(self, layer: int, channels: Tensor, weight: Tensor) -> Tensor:
        """See ``Mixing``."""
        return self._recurrent.convolve(layer, self._rows, channels, weight)

    def recur(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """See ``Mixing``."""
        return self._recurrent.recur(layer, self._rows, inputs)


class TreeMixing:
    """A ``Mixing`` of the nodes of drafted trees: recurrent states are read only, and ``stash`` fills on the way."""

    def __init__(
        self,
        stash: TreeStash,
        *,
        recurrent: RecurrentSlots,
        key_values: PagedKeyValues,
        arithmetic: DeltaArithmetic | None = None,
    ) -> None:
        self._stash = stash
        self._arithmetic = arithmetic
        self._recurrent = recurrent
        self._key_values = key_values

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See ``Mixing``."""
        return self._key_values.attend(layer, self._stash.layout, query, key, value)

    def convolve(self, layer: int, channels: Tensor, weight: Tensor) -> Tensor:
        """See ``Mixing``."""
        assert self._stash.sources is not None, "delta layers have convolutions"
        own, kept, slots = (
            self._recurrent.conv[self._recurrent.place_of(layer)],
            self._stash.kept,
            self._stash.rows.slots,
        )
        if kept is not None:
            self._stash.columns.append(channels)
            return convolve(channels, weight, own, kept.sources, kept.forest, slots)
        past = read_slots(own, slots)
        mixed, columns = verify_convolution(self._by_tree(channels), weight, past, self._stash.sources)
        self._stash.columns.append(columns)
        return mixed.flatten(0, 1)

    def recur(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """See ``Mixing``."""
        place = self._recurrent.place_of(layer)
        if self._stash.kept is not None:
            return self._recur_by_kernel(place, inputs, self._stash.kept)
        state = read_slots(self._recurrent.recurrent[place], self._stash.rows.slots)
        nodes = DeltaInputs(
            query=self._by_tree(inputs.query),
            key=self._by_tree(inputs.key),
            value=self._by_tree(inputs.value),
            log_decay=self._by_tree(inputs.log_decay),
            beta=self._by_tree(inputs.beta),
        )
        mixed, stash = verify_delta(nodes, self._stash.tree.ancestors, state, arithmetic=self._arithmetic)
        self._stash.deltas.append(stash)
        return mixed.flatten(0, 1)

    def _recur_by_kernel(self, place: int, inputs: DeltaInputs, kept: KernelStash) -> Tensor:
        rows = DeltaRows(
            query=inputs.query, key=inputs.key, value=inputs.value, log_decay=inputs.log_decay, beta=inputs.beta
        )
        states, slots = self._recurrent.recurrent[place], self._stash.rows.slots
        return verify(rows, kept.forest, states, slots, stash=kept.nodes.layer(place))[0]

    def _by_tree(self, x: Tensor) -> Tensor:
        parted: Tensor = x.unflatten(0, (-1, self._stash.tree.num_nodes))
        return parted
