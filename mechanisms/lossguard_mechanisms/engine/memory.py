"""Everything that requests occupy: a slot and pages each, and the tensors behind them."""

from __future__ import annotations

from collections.abc import Sequence as Several
from dataclasses import dataclass, field

import torch

from lossguard_mechanisms.drafters.base import Drafter, DrafterState
from lossguard_mechanisms.engine.acceleration import Acceleration
from lossguard_mechanisms.engine.page_pool import NumberPool
from lossguard_mechanisms.engine.pages import PagedKeyValues
from lossguard_mechanisms.engine.sequence import Job, Sequence
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.stateful import RecurrentSlots


@dataclass(frozen=True, slots=True, kw_only=True)
class MemorySizes:
    """How much there is, and of what."""

    num_slots: int
    num_pages: int
    page_size: int
    capacity: int
    """Most positions of one sequence, drafted ones included."""
    num_surplus: int
    """Positions past the end of a reply that a verification may write."""
    dtype: torch.dtype
    device: torch.device
    acceleration: Acceleration = field(default_factory=Acceleration)


class Memory:
    """Slots and pages are taken when a request is admitted, all that it can ever need, and given back when it ends.

    Nothing is preempted, therefore: a request that does not fit yet waits. One slot and one page more than are lent
    take what rows of padding write.
    """

    def __init__(self, config: TargetConfig, sizes: MemorySizes, *, drafter: Drafter | None = None) -> None:
        self.sizes = sizes
        self.slots = NumberPool(sizes.num_slots, name="slot")
        self.pages = NumberPool(sizes.num_pages, name="page")
        dtype, device = sizes.dtype, sizes.device
        has_kernels = sizes.acceleration.has_kernels
        self.recurrent = _slots_class(has_kernels=has_kernels)(config, sizes.num_slots + 1, dtype=dtype, device=device)
        self.key_values = PagedKeyValues(
            config, sizes.num_pages + 1, sizes.page_size, dtype=dtype, device=device, has_kernels=has_kernels
        )
        self.drafter_state: DrafterState | None = None
        if drafter is not None:
            self.drafter_state = drafter.new_state(sizes.num_slots + 1, sizes.capacity, dtype=dtype, device=device)

    @property
    def spare_slot(self) -> int:
        """For rows of padding."""
        return self.sizes.num_slots

    @property
    def spare_page(self) -> int:
        """For rows of padding, and for the ends of block tables."""
        return self.sizes.num_pages

    def num_pages_for(self, job: Job) -> int:
        """Pages for prompt, reply and what is drafted past its end."""
        return -(-(job.num_positions + self.sizes.num_surplus) // self.sizes.page_size)

    def has_room(self, job: Job) -> bool:
        """Whether the job can be admitted now."""
        return self.slots.num_free > 0 and self.pages.num_free >= self.num_pages_for(job)

    def admit(self, job: Job) -> Sequence:
        """Take a slot and pages for a job that there is room for; its states start empty."""
        (slot,) = self.slots.take(1)
        pages = self.pages.take(self.num_pages_for(job))
        self.recurrent.reset([slot])
        if self.drafter_state is not None:
            self.drafter_state.reset([slot])
        return Sequence(job=job, slot=slot, pages=pages, tokens=list(job.request.prompt_ids))

    def release(self, sequence: Sequence) -> None:
        """Give back what a sequence held."""
        self.slots.give_back([sequence.slot])
        self.pages.give_back(sequence.pages)
        self.key_values.forget()

    def check_integrity(self, live: Several[Sequence]) -> None:
        """Every slot and page is free or owned once, by a live sequence. Raises IntegrityError LG1505."""
        self.slots.check(sequence.slot for sequence in live)
        self.pages.check(page for sequence in live for page in sequence.pages)


def _slots_class(*, has_kernels: bool) -> type[RecurrentSlots]:
    if not has_kernels:
        return RecurrentSlots
    from lossguard_mechanisms.engine.kernel_slots import KernelSlots  # needs triton

    return KernelSlots
