"""A schedule of drafts and acceptances, laid over plain decoding.

A draft-and-verify server advances in blocks: some drafts are accepted, then one token of the target's own follows. What
goes wrong there goes wrong at the first step of a block, after so many accepted and so many rejected drafts. Faults of
that kind need the schedule, not the drafter: it is drawn here per request, and reported as telemetry as a server's
metrics would.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise

from lossguard.records import Request, ServedOutput
from lossguard_suites.adversarial.faults.drawing import chance

NUM_DRAFTS = 3
ACCEPTANCE = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """One step of a draft-and-verify server: positions ``start`` to ``start + accepted`` of the reply."""

    start: int
    accepted: int

    @property
    def rejected(self) -> int:
        """Drafts that were verified and thrown away."""
        return NUM_DRAFTS - self.accepted

    @property
    def stop(self) -> int:
        """The first position after it, which begins the next block."""
        return self.start + self.accepted + 1


def schedule(request: Request, seed: int) -> tuple[Block, ...]:
    """The blocks of a request, the last one perhaps reaching past ``max_tokens``; position 0 is the prompt's own."""
    return _schedule(request.id, request.repeat_id, request.sampling.max_tokens, seed)


@lru_cache(maxsize=4096)
def _schedule(request_id: str, repeat_id: int, num_tokens: int, seed: int) -> tuple[Block, ...]:
    blocks: list[Block] = []
    start = 1
    while start < num_tokens:
        draws = [chance("draft", seed, request_id, repeat_id, start, number) for number in range(NUM_DRAFTS)]
        refused = [number for number, value in enumerate(draws) if value >= ACCEPTANCE]
        blocks.append(Block(start=start, accepted=refused[0] if refused else NUM_DRAFTS))
        start = blocks[-1].stop
    return tuple(blocks)


def block_before(request: Request, seed: int) -> dict[int, Block]:
    """For every reply position that begins a block after the first: the block that came before it."""
    blocks = schedule(request, seed)
    return {later.start: earlier for earlier, later in pairwise(blocks)}


def speculation_telemetry(output: ServedOutput, request: Request, *, seed: int = 0) -> ServedOutput:
    """Reports the schedule as an engine reports its own: block positions, tokens after a rejection, and totals."""
    num_tokens = len(output.ids)
    blocks = [block for block in schedule(request, seed) if block.start < num_tokens]
    position, after = [0.0] * num_tokens, [0.0] * num_tokens
    was_rejected = False
    for block in blocks:
        for at in range(block.start, min(block.stop, num_tokens)):
            position[at], after[at] = float(at - block.start), float(was_rejected)
        was_rejected = block.rejected > 0
    telemetry = {
        **output.telemetry,
        "drafts": (float(NUM_DRAFTS * len(blocks)),),
        "accepted": (float(sum(block.accepted for block in blocks)),),
        "steps": (float(len(blocks) + 1),),
        "block_position": tuple(position),
        "after_rejection": tuple(after),
    }
    return replace(output, telemetry=telemetry)
