"""Who takes part in the next step: all that decode, and prompt tokens up to a budget beside them."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

from lossguard_mechanisms.engine.memory import Memory
from lossguard_mechanisms.engine.sequence import Job, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class Chunk:
    """Prompt tokens of one sequence that are read in this step."""

    sequence: Sequence
    length: int

    @property
    def is_last(self) -> bool:
        """Whether the prompt ends with it, so that the first token of the reply can be chosen."""
        return self.length == self.sequence.num_unread


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPlan:
    """One step."""

    decoding: tuple[Sequence, ...]
    chunks: tuple[Chunk, ...]


class Scheduler:
    """First come, first served; a job that does not fit yet holds back those behind it, so that none starves."""

    def __init__(self, memory: Memory, *, prefill_chunk: int) -> None:
        self._memory = memory
        self._prefill_chunk = prefill_chunk
        self.waiting: deque[Job] = deque()
        self.running: list[Sequence] = []

    @property
    def has_work(self) -> bool:
        """Whether anything waits or runs."""
        return bool(self.waiting or self.running)

    def plan(self) -> StepPlan:
        """Admit what fits, then divide the sequences that run."""
        while self.waiting and self._memory.has_room(self.waiting[0]):
            self.running.append(self._memory.admit(self.waiting.popleft()))
        budget, chunks = self._prefill_chunk, []
        for sequence in self.running:
            if sequence.num_unread and budget:
                chunks.append(Chunk(sequence=sequence, length=min(budget, sequence.num_unread)))
                budget -= chunks[-1].length
        decoding = [sequence for sequence in self.running if not sequence.num_unread]
        decoding.sort(key=lambda sequence: sequence.slot)  # as their states lie, so that these need not be gathered
        return StepPlan(decoding=tuple(decoding), chunks=tuple(chunks))

    def retire(self) -> list[Sequence]:
        """Take out the sequences that have ended, and give back what they held."""
        ended = [sequence for sequence in self.running if sequence.finish is not None]
        for sequence in ended:
            self.running.remove(sequence)
            self._memory.release(sequence)
        return ended

    def cancel(self, request_id: str) -> bool:
        """Drop a request wherever it is; False if it is neither waiting nor running."""
        for job in self.waiting:
            if job.request.id == request_id:
                self.waiting.remove(job)
                return True
        for sequence in self.running:
            if sequence.job.request.id == request_id:
                self.running.remove(sequence)
                self._memory.release(sequence)
                return True
        return False
