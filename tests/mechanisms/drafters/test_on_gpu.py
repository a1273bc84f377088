"""Drafters on an accelerator give what they give on the CPU, also as a graph that is replayed."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lossguard_mechanisms.drafters.fresh import AnyDrafter
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.drafters.state import DrafterState
from lossguard_mechanisms.targets.rows import Rows, rows_of
from tests.mechanisms.drafters.small import NAMES, random_features, random_ids, small_drafter, small_target

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
]


def context_on(device: str, name: str) -> tuple[AnyDrafter, DrafterState, Rows, Tensor]:
    """A drafter with two sequences of seven and four tokens, and their anchors."""
    drafter = small_drafter(name, small_target(dtype=torch.float32))
    drafter.target.to(device)
    drafter.to(device)
    state = drafter.new_state(3, 32, dtype=torch.float32, device=device)
    features = random_features(drafter, 11).to(device)
    drafter.extend(state, rows_of([2, 0], [0, 0], [7, 4], device=device), random_ids(11).to(device), features)
    rows = rows_of([2, 0], [7, 4], [1, 1], device=device, longest_context=16)
    return drafter, state, rows, torch.tensor([5, 9], device=device)


def same(found: Lattice, expected: Lattice) -> None:
    assert torch.equal(found.chain.cpu(), expected.chain.cpu())
    torch.testing.assert_close(found.log_probs.cpu(), expected.log_probs.cpu(), rtol=0, atol=2e-3)


@pytest.mark.parametrize("name", NAMES)
def test_a_lattice_is_the_cpus(name: str) -> None:
    lattices = []
    for device in ("cpu", "cuda"):
        drafter, state, rows, anchors = context_on(device, name)
        lattices.append(drafter.draft(state, rows, anchors))
    same(lattices[1], lattices[0])


@pytest.mark.parametrize("name", NAMES)
def test_a_draft_can_be_captured_and_replayed(name: str) -> None:
    drafter, state, rows, anchors = context_on("cuda", name)
    expected = drafter.draft(state, rows, anchors)
    stream = torch.cuda.Stream()
    with torch.inference_mode():
        with torch.cuda.stream(stream):
            drafter.draft(state, rows, torch.zeros_like(anchors))
        torch.cuda.current_stream().wait_stream(stream)
        asked, graph = torch.zeros_like(anchors), torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            captured = drafter.draft(state, rows, asked)
        asked.copy_(anchors)
        graph.replay()
    same(captured, expected)
