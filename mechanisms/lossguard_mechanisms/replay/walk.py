"""Through the recorded replies from step to step, as an engine would have gone with a policy.

A step at reply token t that accepts a drafted tokens emits them and the target's own next token: a + 1 tokens, or fewer
where the reply ends inside (at its stop token or its length limit). The first token of a reply comes from the prefill
and is no step's, unless ``prefill_emits`` is False. Since the target's tokens do not depend on the tree (greedy, or
drawn from a seed and a position), this is what an engine with that policy does, token for token.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard_mechanisms.replay.policies import Policy, accepted_everywhere
from lossguard_mechanisms.replay.recording import IntArray, Recording


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """What R requests took with one policy."""

    tokens: IntArray  # [R] emitted by steps
    steps: IntArray  # [R]
    steps_by_emitted: IntArray  # [D + 2] number of steps that emitted 0, 1, ... D + 1 tokens

    @property
    def tau(self) -> float:
        """Tokens per step over all requests; NaN without any step."""
        return float(self.tokens.sum() / self.steps.sum()) if self.steps.sum() else float("nan")


def replay(recording: Recording, policy: Policy, *, prefill_emits: bool = True) -> Replay:
    """Every reply of the recording, step by step with ``policy``."""
    accepted = accepted_everywhere(recording, policy)
    offsets = recording.replies.reply_offsets
    return walk(accepted, offsets, num_depths=recording.lattices.num_depths, prefill_emits=prefill_emits)


def walk(accepted: IntArray, offsets: IntArray, *, num_depths: int, prefill_emits: bool) -> Replay:
    """As ``replay``, from what each position [T] would accept; ``offsets`` [R + 1] cut out the replies."""
    ends = offsets[1:]
    begins = offsets[:-1] + int(prefill_emits)
    places = begins.copy()
    steps = np.zeros(len(ends), dtype=np.int64)
    emitted_counts = np.zeros(num_depths + 2, dtype=np.int64)
    while (active := np.flatnonzero(places < ends)).size:
        here = places[active]
        emitted = np.minimum(accepted[here] + 1, ends[active] - here)
        emitted_counts += np.bincount(emitted, minlength=num_depths + 2)
        steps[active] += 1
        places[active] += emitted
    return Replay(tokens=ends - begins, steps=steps, steps_by_emitted=emitted_counts)
