"""Tables for replayed targets: what each sequence of a benchmark serves and drafts, recorded or made up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from lossguard_mechanisms.engine.replayed import RecordedLattices, ReplayTable, replay_table
from lossguard_mechanisms.replay.recording import Lattices
from lossguard_mechanisms.replay.store import load_recording


def recorded_table(
    path: Path, *, batch: int, length: int, num_drafts: int, device: torch.device, has_lattices: bool = False
) -> ReplayTable:
    """Recorded replies one after the other until there are ``length`` tokens, each sequence beginning with another.

    At a reply's end a chain drafts past it, where the next reply stands, so that these drafts are lost as they are in
    serving. With ``has_lattices`` all candidates are there for trees to choose from.
    """
    recording = load_recording(path)
    count = recording.replies.num_requests
    lattices = [_tensors(recording.of_request(row)) for row in range(count)] if has_lattices else []
    kept: list[tuple[Tensor, ...]] = []
    pairs = [
        (recording.replies.reply(row).tolist(), recording.of_request(row).chain[:, :num_drafts].tolist())
        for row in range(count)
    ]
    replies: dict[str, list[int]] = {}
    chains: dict[str, list[list[int]]] = {}
    for row in range(batch):
        tokens, drafted, at, parts = list[int](), list[list[int]](), row * count // batch, list[tuple[Tensor, ...]]()
        while len(tokens) < length:
            tokens += pairs[at % count][0]
            drafted += pairs[at % count][1]
            parts += lattices[at % count : at % count + 1]
            at += 1
        replies[f"r{row}"], chains[f"r{row}"] = tokens[:length], drafted[:length]
        kept.append(tuple(torch.cat(column)[:length] for column in zip(*parts, strict=True)))
    table = replay_table(replies, chains, device=device)
    return replace(table, lattices=_stacked(kept, device)) if has_lattices else table


def _tensors(lattices: Lattices) -> tuple[Tensor, ...]:
    """Candidates, their log-probabilities, and the pairs' if there are any, of every position."""
    found = (torch.from_numpy(lattices.ids).long(), torch.from_numpy(lattices.log_probs))
    if lattices.edges is None or lattices.anchor_edges is None:
        return found
    assert lattices.num_edge_candidates == lattices.num_candidates, "a recording with all pairs (no --edges)"
    first = torch.from_numpy(lattices.anchor_edges)[:, None, None].expand(-1, 1, lattices.num_edge_candidates, -1)
    return (*found, torch.cat((first, torch.from_numpy(lattices.edges)), dim=1))


def _stacked(rows: Sequence[tuple[Tensor, ...]], device: torch.device) -> RecordedLattices:
    ids, log_probs, *pairs = (torch.stack(column).to(device) for column in zip(*rows, strict=True))
    return RecordedLattices(ids=ids, log_probs=log_probs, edges=pairs[0] if pairs else None)


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
