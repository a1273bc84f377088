"""Tables for replayed targets: what each sequence of a benchmark serves and drafts, recorded or made up."""

from __future__ import annotations

from pathlib import Path

import torch

from lossguard_mechanisms.engine.replayed import ReplayTable, replay_table
from lossguard_mechanisms.replay.store import load_recording


def recorded_table(path: Path, *, batch: int, length: int, num_drafts: int, device: torch.device) -> ReplayTable:
    """Recorded replies one after the other until there are ``length`` tokens, each sequence beginning with another.

    At a reply's end a chain drafts past it, where the next reply stands, so that these drafts are lost as they are in
    serving.
    """
    recording = load_recording(path)
    count = recording.replies.num_requests
    pairs = [
        (recording.replies.reply(row).tolist(), recording.of_request(row).chain[:, :num_drafts].tolist())
        for row in range(count)
    ]
    replies: dict[str, list[int]] = {}
    chains: dict[str, list[list[int]]] = {}
    for row in range(batch):
        tokens, drafted, at = list[int](), list[list[int]](), row * count // batch
        while len(tokens) < length:
            tokens += pairs[at % count][0]
            drafted += pairs[at % count][1]
            at += 1
        replies[f"r{row}"], chains[f"r{row}"] = tokens[:length], drafted[:length]
    return replay_table(replies, chains, device=device)


def made_up_table(
    *, batch: int, length: int, num_drafts: int, acceptance: float, vocab_size: int, device: torch.device
) -> ReplayTable:
    """Random tokens, of which each draft is right with the chance ``acceptance``."""
    generator = torch.Generator().manual_seed(1)
    tokens = torch.randint(0, vocab_size, (batch, length + num_drafts), generator=generator)
    truth = torch.stack([tokens[:, at : at + length] for at in range(num_drafts)], dim=-1)
    is_right = torch.rand(truth.shape, generator=generator) < acceptance
    chains = torch.where(is_right, truth, (truth + 1) % vocab_size)
    return ReplayTable(
        request_ids=tuple(f"r{row}" for row in range(batch)),
        lengths=(length,) * batch,
        tokens=tokens[:, :length].to(device),
        chains=chains.to(device),
    )
