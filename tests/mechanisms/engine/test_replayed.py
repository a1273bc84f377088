"""Replayed targets: recorded tokens whatever the weights choose, and steps as the recorded chains allow."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from lossguard.errors import EngineError
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.memory import Memory, MemorySizes
from lossguard_mechanisms.engine.replayed import RecordedLattices, ReplayedStage, ReplayTable, replay_table
from lossguard_mechanisms.trees.policies import BestFirstPolicy
from tests.mechanisms.engine.doubles import job_of, knowing_speculation, request
from tests.mechanisms.targets.tiny import pair

NUM_DRAFTS = 4
NUM_NODES = 16
CPU = torch.device("cpu")


def table(lengths: tuple[int, ...]) -> ReplayTable:
    """Replies of other tokens than the model's, chains right in three of four places."""
    generator = torch.Generator().manual_seed(1)
    replies, chains = {}, {}
    for row, length in enumerate(lengths):
        reply = torch.randint(0, 53, (length + NUM_DRAFTS,), generator=generator)
        truth = torch.stack([reply[at : at + NUM_DRAFTS] for at in range(length)])
        is_right = torch.rand(truth.shape, generator=generator) < 0.75
        replies[f"r{row}"] = reply[:length].tolist()
        chains[f"r{row}"] = torch.where(is_right, truth, (truth + 1) % 53).tolist()
    return replay_table(replies, chains, device=CPU)


def with_lattices(recorded: ReplayTable) -> ReplayTable:
    """The chain as the second of three candidates at every depth, of equal probability."""
    ids = (recorded.chains[..., None] + torch.tensor([20, 0, 30])) % 53
    log_probs = torch.full(ids.shape, -1.5)
    return replace(recorded, lattices=RecordedLattices(ids=ids, log_probs=log_probs, edges=None))


def core_over(recorded: ReplayTable, mode: str) -> EngineCore:
    """Three slots."""
    target = pair("qwen3_5_text").ours
    speculation = None if mode == "plain" else knowing_speculation({}, num_drafts=NUM_DRAFTS)
    if mode == "tree" and speculation is not None:
        speculation = replace(speculation, policy=BestFirstPolicy(NUM_NODES, on_edges=False, num_depths=NUM_DRAFTS))
    sizes = MemorySizes(
        num_slots=3, num_pages=50, page_size=4, capacity=64, num_surplus=NUM_NODES + 1,
        dtype=torch.float32, device=CPU,
    )  # fmt: skip
    memory = Memory(target.config, sizes, drafter=None if speculation is None else speculation.drafter)
    stage = ReplayedStage(target.config, memory, speculation, recorded)
    return EngineCore(target, memory, prefill_chunk=8, stage=stage)


def steps_by_hand(reply: list[int], chains: list[list[int]]) -> int:
    """Steps after the first token: each takes the right prefix of the chain, and one token more."""
    at, steps = 1, 0
    while at < len(reply):
        right = 0
        while right < NUM_DRAFTS and at + right < len(reply) and chains[at][right] == reply[at + right]:
            right += 1
        at, steps = at + right + 1, steps + 1
    return steps


@pytest.mark.parametrize("mode", ["plain", "chain", "tree"])
def test_the_recorded_tokens_come_out_in_the_recorded_steps(mode: str) -> None:
    lengths = (17, 9, 21, 1, 14)
    recorded = with_lattices(table(lengths))
    core = core_over(recorded, mode)
    for row, length in enumerate(lengths):
        core.add(job_of(request(f"r{row}", [row + 1] * (3 + row), length)))
    ended = []
    while core.has_work:
        ended += core.step()
    for sequence in ended:
        row = int(sequence.job.request.id[1:])
        reply = recorded.tokens[row, : lengths[row]].tolist()
        assert sequence.served == reply
        if mode == "tree" and length > 1:  # all paths of two depths are in the tree, so that many drafts are right
            assert sequence.counts.num_steps < length - 1
        if mode == "chain":
            assert sequence.counts.num_steps == steps_by_hand(reply, recorded.chains[row].tolist())


def test_a_request_that_was_not_recorded_is_refused() -> None:
    core = core_over(table((4,)), "plain")
    core.add(job_of(request("other", [1], 4)))
    with pytest.raises(EngineError, match="LG1503"):
        core.step()
