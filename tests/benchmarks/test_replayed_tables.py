"""Tables that a replayed target serves from."""

from __future__ import annotations

from pathlib import Path

import torch

from benchmarks.replayed_tables import made_up_table, recorded_table
from lossguard_mechanisms.replay.store import load_recording
from lossguard_mechanisms.trees.beam import step_scores

LATTICES = Path(__file__).parents[2] / "fixtures" / "lattices"
CPU = torch.device("cpu")


def test_recorded_replies_follow_one_another_and_every_sequence_begins_with_another() -> None:
    (path,) = LATTICES.glob("dflash2*.safetensors")
    recording = load_recording(path)
    table = recorded_table(path, batch=3, length=50, num_drafts=7, device=CPU)
    assert (table.lengths, table.tokens.shape, table.chains.shape) == ((50,) * 3, (3, 50), (3, 50, 7))
    for row, first in enumerate((0, 8, 16)):  # of 24 replies
        reply, following = recording.replies.reply(first), recording.replies.reply(first + 1)
        assert table.tokens[row, : len(reply)].tolist() == reply.tolist()
        assert table.tokens[row, len(reply)] == following[0]
        assert table.chains[row, : len(reply)].tolist() == recording.of_request(first).chain[:, :7].tolist()


def test_recorded_candidates_make_the_trees_of_the_recording() -> None:
    (path,) = LATTICES.glob("dflash2*.safetensors")
    recording = load_recording(path)
    table = recorded_table(path, batch=2, length=40, num_drafts=7, device=CPU, has_lattices=True)
    lattice = table.lattice(torch.tensor([0, 1]), torch.tensor([3, 5]))
    assert lattice.edges is not None
    assert lattice.ids.shape == (2, 7, 16)
    own = recording.of_request(12).rows(slice(5, 6))  # the second of two sequences begins in the middle of 24 replies
    assert lattice.ids[1].tolist() == own.ids[0].tolist()
    assert own.edges is not None
    assert own.anchor_edges is not None
    first, steps = step_scores(lattice, on_edges=True)
    assert torch.allclose(first[1], torch.from_numpy(own.anchor_edges[0]).float(), atol=0.02)
    assert torch.allclose(steps[1], torch.from_numpy(own.edges[0]).float(), atol=0.02)


def test_made_up_drafts_are_right_as_often_as_asked() -> None:
    table = made_up_table(batch=8, length=400, num_drafts=3, acceptance=0.8, vocab_size=1000, device=CPU)
    right = [
        (table.chains[:, :390, depth] == table.tokens[:, depth : 390 + depth]).float().mean() for depth in range(3)
    ]
    assert all(abs(float(share) - 0.8) < 0.03 for share in right)
