"""The kernels in Triton's interpreter (tests/conftest.py) beside a recurrence in float64; poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest
import torch
from torch import Tensor

from lossguard_kernels.forests.forest import forest_of
from lossguard_kernels.wy_verify.operation import commit, defer, fold, layer_of, path_lengths, verify
from lossguard_kernels.wy_verify.rows import DeltaRows, Stash, StashShape, empty_pending, empty_stash
from tests.kernels.wy_verify.delta_rows import KINDS, Sizes, as_dtype, delta_rows, parents_of, reference, relative

TOLERANCE = 1e-6


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def shape_of(rows: DeltaRows, layers: int) -> StashShape:
    return StashShape(
        layers=layers,
        rows=rows.key.shape[0],
        key_heads=rows.key.shape[1],
        heads=rows.value.shape[1],
        key_dim=rows.key.shape[2],
        value_dim=rows.value.shape[2],
        dtype=rows.key.dtype,
    )


def random_states(num: int, sizes: Sizes) -> Tensor:
    return torch.randn(num, sizes.heads, sizes.key_dim, sizes.value_dim) * 0.3


def errors_of(parents: Sequence[Sequence[int]], rows: DeltaRows, sizes: Sizes) -> tuple[float, float]:
    """Verify, and commit the last node of every tree: relative errors of outputs and of states."""
    forest, states = forest_of(parents), random_states(len(parents) + 2, sizes)
    slots = torch.randperm(len(states))[: len(parents)]
    before, stash = states.clone(), empty_stash(shape_of(rows, 1), "cpu")
    output, _ = verify(rows, forest, states, slots, stash=stash.layer(0))
    assert torch.equal(states, before), "a verification changes no state"
    expected, after = reference(rows, parents, before[slots])
    commit(stash, forest, forest.counts - 1, states[None], slots)
    others = [slot for slot in range(len(states)) if slot not in slots.tolist()]
    assert torch.equal(states[others], before[others]), "other slots stay"
    ended = torch.stack([nodes[-1] for nodes in after])
    return relative(output, expected), relative(states[slots], ended)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 7, 16, 24, 33, 64])
def test_trees(kind: str, size: int) -> None:
    sizes = Sizes()
    rows = delta_rows(size, sizes, seed=size, decay=(0.0, 0.1, 3.0)[size % 3])
    errors = errors_of([parents_of(kind, size, size)], rows, sizes)
    assert max(errors) <= TOLERANCE, errors


@pytest.mark.parametrize("size", [16, 64])
@pytest.mark.parametrize("rates", [0.0, 0.95])
@pytest.mark.parametrize("decay", [0.0, 0.05])
def test_aligned_keys(size: int, rates: float, decay: float) -> None:
    sizes = Sizes(heads=1)
    rows = delta_rows(size, sizes, aligned=True, decay=decay, rates=rates)
    errors = errors_of([parents_of("chain", size)], rows, sizes)
    assert max(errors) <= TOLERANCE, errors


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(key_heads=1, heads=3, key_dim=96, value_dim=48),
        Sizes(key_heads=2, heads=4, key_dim=128, value_dim=128),
        Sizes(key_heads=1, heads=1, key_dim=256, value_dim=64),
        Sizes(key_heads=1, heads=2, key_dim=16, value_dim=80),
    ],
    ids=str,
)
def test_forests_of_awkward_shapes(sizes: Sizes) -> None:
    parents = [parents_of("random", 5), parents_of("deep", 20), parents_of("roots", 1)]
    rows = delta_rows(26, sizes, seed=3)
    errors = errors_of(parents, rows, sizes)
    assert max(errors) <= TOLERANCE, errors


def test_a_request_without_nodes_and_one_that_accepts_nothing() -> None:
    sizes, parents = Sizes(), [[], parents_of("random", 6), [-1]]
    rows, forest, states = delta_rows(7, sizes), forest_of(parents), random_states(3, sizes)
    slots, before = torch.tensor([2, 0, 1]), states.clone()
    output, stash = verify(rows, forest, states, slots)
    expected, after = reference(rows, parents, before[slots])
    assert relative(output, expected) <= TOLERANCE
    one_layer = Stash(
        keys=stash.keys[None], units=stash.units[None], updates=stash.updates[None], totals=stash.totals[None]
    )
    commit(one_layer, forest, torch.tensor([-1, 3, -1]), states[None], slots)
    assert torch.equal(states[[2, 1]], before[[2, 1]])
    assert relative(states[0], after[1][3]) <= TOLERANCE


def test_bfloat16_rounds_outputs_only() -> None:
    """Products of its operands are exact, so that the state is as near to float64 as with float32."""
    sizes, parents = (
        Sizes(key_heads=1, heads=2, key_dim=64, value_dim=32),
        [parents_of("deep", 20), parents_of("star", 9)],
    )
    rows = as_dtype(delta_rows(29, sizes), torch.bfloat16)
    outputs, states = errors_of(parents, rows, sizes)
    assert states <= TOLERANCE
    assert outputs <= 2**-7, "the interpreter cuts where a device rounds"


@pytest.mark.parametrize("nodes", [9, 20, 40])
def test_all_layers_at_once_and_deferred_rows(nodes: int) -> None:
    """Three rounds: committed at once, and deferred and folded after the third, give the reference's state."""
    sizes, layers, parents = Sizes(), 2, [parents_of("random", nodes, 4), parents_of("deep", 6, 5)]
    forest, slots = forest_of(parents), torch.tensor([2, 0])
    now = torch.stack([random_states(3, sizes) for _ in range(layers)])
    late, truth = now.clone(), now.double()
    rows = [delta_rows(nodes + 6, sizes, seed=9 + step) for step in range(3 * layers)]
    pending = empty_pending(shape_of(rows[0], layers), 3, 64, "cpu")
    for step in range(3):
        stash, later = (empty_stash(shape_of(rows[0], layers), "cpu") for _ in range(2))
        last, most = torch.tensor([nodes - 1, 5 - step]), int(pending.counts.max()) + nodes
        for layer in range(layers):
            own = rows[layers * step + layer]
            expected, after = reference(own, parents, truth[layer, slots])
            output, _ = verify(own, forest, now[layer], slots, stash=stash.layer(layer))
            waited, _ = verify(
                own, forest, late[layer], slots, stash=later.layer(layer), pending=layer_of(pending, layer)
            )
            assert relative(output, expected) <= TOLERANCE
            assert relative(waited, expected) <= TOLERANCE
            truth[layer, slots] = torch.stack([nodes[node] for nodes, node in zip(after, last, strict=True)])
        commit(stash, forest, last, now, slots)
        defer(later, forest, last, pending, slots, most_rows=most)
    assert torch.equal(late[:, 1], now[:, 1])
    assert not torch.equal(late, now)
    fold(pending, late, slots)
    assert relative(now[:, slots], truth[:, slots]) <= TOLERANCE
    assert relative(late[:, slots], truth[:, slots]) <= TOLERANCE
    assert pending.counts.tolist() == [0, 0, 0]


@pytest.mark.parametrize("nodes", [16, 18, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_both_backends_agree(nodes: int, dtype: torch.dtype) -> None:
    sizes, parents = Sizes(key_heads=2, heads=4), [parents_of("binary", nodes), [], parents_of("roots", 5)]
    rows, forest = as_dtype(delta_rows(nodes + 5, sizes), dtype), forest_of(parents)
    states = random_states(3, sizes)
    slots = torch.tensor([1, 2, 0])
    ours, kept = verify(rows, forest, states, slots)
    theirs, same = verify(rows, forest, states, slots, backend="torch")
    for name in ("keys", "units", "updates", "totals"):
        torch.testing.assert_close(getattr(kept, name), getattr(same, name), rtol=1e-5, atol=1e-6)
    rounding = 1e-5 if dtype == torch.float32 else 2**-10
    torch.testing.assert_close(ours, theirs, rtol=rounding, atol=rounding / 10)


def test_lengths_of_paths() -> None:
    forest = forest_of([parents_of("chain", 64), [-1, 0, 0, 2], []])
    assert path_lengths(forest, torch.tensor([63, 3, -1])).tolist() == [64, 3, 0]
