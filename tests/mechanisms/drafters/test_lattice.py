"""What every lattice keeps to, of all drafters, also in bfloat16."""

from __future__ import annotations

import pytest
import torch

from lossguard_mechanisms.drafters.base import Drafter
from lossguard_mechanisms.drafters.lattice import TOP_K, Lattice
from lossguard_mechanisms.targets.rows import rows_of
from tests.mechanisms.drafters.small import NAMES, VOCAB_SIZE, random_features, random_ids, small_drafter, small_target


def lattice_of(name: str, dtype: torch.dtype = torch.float64, *, num_depths: int | None = None) -> Lattice:
    target = small_target(dtype=dtype)
    kept = small_drafter(name, target)
    drafter: Drafter = kept
    state = drafter.new_state(2, 16, dtype=dtype, device="cpu")
    drafter.extend(state, rows_of([1, 0], [0, 0], [5, 3]), random_ids(8), random_features(kept, 8))
    return drafter.draft(state, rows_of([1, 0], [5, 3], [1, 1]), torch.tensor([4, 5]), num_depths=num_depths)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_shapes_and_kinds(name: str, dtype: torch.dtype) -> None:
    lattice = lattice_of(name, dtype)
    assert lattice.num_depths == 5
    assert lattice.ids.shape == lattice.log_probs.shape == (2, 5, TOP_K)
    assert (lattice.ids.dtype, lattice.chain.dtype) == (torch.int64, torch.int64)
    assert lattice.log_probs.dtype == torch.float32
    assert lattice.chain.shape == (2, 5)
    assert (lattice.edges is None) == (name == "eagle3")
    assert (lattice.confidence is None) == (name != "dspark")
    if lattice.edges is not None:
        assert lattice.edges.shape == (2, 5, TOP_K, TOP_K)
        assert lattice.edges.dtype == torch.float32
    if lattice.confidence is not None:
        assert lattice.confidence.shape == (2, 5)
        assert bool(((lattice.confidence >= 0) & (lattice.confidence <= 1)).all())


@pytest.mark.parametrize("name", NAMES)
def test_candidates_are_different_and_best_first(name: str) -> None:
    lattice = lattice_of(name)
    assert bool((lattice.log_probs.diff(dim=-1) <= 0).all())
    assert all(len(set(ids)) == TOP_K for ids in lattice.ids.flatten(0, 1).tolist())
    assert bool((lattice.log_probs.exp().sum(-1) < 1).all())
    assert bool(((lattice.ids >= 0) & (lattice.ids < VOCAB_SIZE)).all())


@pytest.mark.parametrize("name", NAMES)
def test_fewer_depths_are_given_on_request(name: str) -> None:
    assert lattice_of(name, num_depths=2).chain.shape == (2, 2)


@pytest.mark.parametrize("name", ["dspark", "eagle3"])
def test_a_serial_chain_is_the_best_candidate_of_each_depth(name: str) -> None:
    lattice = lattice_of(name)
    assert torch.equal(lattice.chain, lattice.ids[..., 0])


def test_dflash2_walks_over_its_edges() -> None:
    lattice = lattice_of("dflash2")
    assert lattice.edges is not None
    for row in range(2):
        before = 0
        for depth in range(lattice.num_depths):
            before = int(lattice.edges[row, depth, before].argmax())
            assert lattice.chain[row, depth] == lattice.ids[row, depth, before]
    assert not torch.equal(lattice.chain, lattice.ids[..., 0])  # else the walk were not tested


def test_dspark_edges_of_its_chain_are_its_log_probs() -> None:
    lattice = lattice_of("dspark")
    assert lattice.edges is not None
    torch.testing.assert_close(lattice.edges[:, :, 0], lattice.log_probs, rtol=0, atol=1e-9)
    assert not torch.allclose(lattice.edges[:, 1:, 1], lattice.log_probs[:, 1:], atol=1e-3)


@pytest.mark.parametrize("name", ["dflash2", "dspark"])
def test_the_anchor_is_the_one_predecessor_of_depth_0(name: str) -> None:
    edges = lattice_of(name).edges
    assert edges is not None
    assert torch.equal(edges[:, 0], edges[:, 0, :1].expand(-1, TOP_K, -1))
