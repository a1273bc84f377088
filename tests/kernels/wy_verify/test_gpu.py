"""The compiled kernels on a GPU, at the sizes of a 27B hybrid; poisoned memory."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from lossguard_kernels.forests.forest import forest_of
from lossguard_kernels.wy_verify import naive, rivals
from lossguard_kernels.wy_verify.convolution import convolve, sources_of
from lossguard_kernels.wy_verify.operation import commit, defer, fold, layer_of, verify
from lossguard_kernels.wy_verify.rows import DeltaRows, empty_pending, empty_stash
from tests.kernels.wy_verify.delta_rows import KINDS, Sizes, as_dtype, delta_rows, parents_of, reference, relative
from tests.kernels.wy_verify.test_operation import random_states, shape_of

pytestmark = pytest.mark.gpu

LARGE = Sizes(key_heads=2, heads=6, key_dim=128, value_dim=128)


@pytest.fixture(autouse=True)
def _poison() -> Iterator[None]:
    torch.manual_seed(0)
    torch.use_deterministic_algorithms(mode=True, warn_only=True)
    yield
    torch.use_deterministic_algorithms(mode=False)


def on_device(rows: DeltaRows) -> DeltaRows:
    return DeltaRows(**{name: getattr(rows, name).cuda() for name in DeltaRows.__slots__})


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("size", [1, 16, 24, 33, 64])
@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32], ids=str)
@pytest.mark.parametrize("keys", ["random", "aligned"])
def test_trees(kind: str, size: int, dtype: torch.dtype, keys: str) -> None:
    parents = [parents_of(kind, size, 1), parents_of("random", min(size, 9)), []]
    is_aligned, num = keys == "aligned", sum(map(len, parents))
    rows = as_dtype(delta_rows(num, LARGE, aligned=is_aligned, rates=0.9 * is_aligned), dtype)
    own, forest, states = on_device(rows), forest_of(parents, "cuda"), random_states(4, LARGE).cuda()
    slots, stash = torch.tensor([3, 0, 1], device="cuda"), empty_stash(shape_of(rows, 1), "cuda")
    expected, after = reference(rows, parents, states[slots].cpu())
    output, _ = verify(own, forest, states, slots, stash=stash.layer(0))
    again, _ = verify(own, forest, states, slots)
    assert torch.equal(output, again), "results repeat bit for bit"
    commit(stash, forest, forest.counts - 1, states[None], slots)
    ended = torch.stack([nodes[-1] for nodes in after[:2]])
    assert relative(states[slots[:2]].cpu(), ended) <= (1e-6 if dtype == torch.bfloat16 else 2e-6)
    assert relative(output.cpu(), expected) <= (2**-8 if dtype == torch.bfloat16 else 3e-6)


@pytest.mark.parametrize(
    "sizes",
    [
        Sizes(key_heads=1, heads=3, key_dim=96, value_dim=48),
        Sizes(key_heads=1, heads=2, key_dim=256, value_dim=64),
        Sizes(key_heads=1, heads=2, key_dim=64, value_dim=96),
    ],
    ids=str,
)
def test_awkward_shapes(sizes: Sizes) -> None:
    parents = [parents_of("deep", 20), parents_of("roots", 5)]
    rows, states = as_dtype(delta_rows(25, sizes), torch.bfloat16), random_states(2, sizes)
    expected, _ = reference(rows, parents, states)
    slots = torch.arange(2, device="cuda")
    output, _ = verify(on_device(rows), forest_of(parents, "cuda"), states.cuda(), slots)
    assert relative(output.cpu(), expected) <= 2**-8


def test_300_rounds_at_once_and_deferred() -> None:
    """Deferred rows are folded every fourth round."""
    sizes, nodes = Sizes(key_heads=1, heads=1, key_dim=128, value_dim=128), 12
    truth = torch.randn(1, 128, 128, dtype=torch.float64) * 0.1
    now, slots = truth.float()[None, None].cuda(), torch.zeros(1, dtype=torch.int64, device="cuda")
    late = now.clone()
    rows = as_dtype(delta_rows(nodes, sizes), torch.bfloat16)
    pending = empty_pending(shape_of(rows, 1), 1, 64, "cuda")
    for step in range(300):
        parents, node = parents_of("deep", nodes, step), (7 * step) % nodes
        rows = as_dtype(delta_rows(nodes, sizes, seed=step, decay=0.02), torch.bfloat16)
        own, forest, last = on_device(rows), forest_of([parents], "cuda"), torch.tensor([node], device="cuda")
        stash, later = (empty_stash(shape_of(rows, 1), "cuda") for _ in range(2))
        verify(own, forest, now[0], slots, stash=stash.layer(0))
        verify(own, forest, late[0], slots, stash=later.layer(0), pending=layer_of(pending, 0))
        commit(stash, forest, last, now, slots)
        defer(later, forest, last, pending, slots, most_rows=(step % 4 + 1) * nodes)
        if step % 4 == 3:
            fold(pending, late, slots)
        truth = naive.after_path(rows, naive.path_to(parents, node), truth)
    for state in (now, late):
        assert float((state[0, 0].cpu() - truth).norm() / truth.norm()) <= 5e-7


def test_convolution() -> None:
    parents = [parents_of("random", 16), parents_of("chain", 5)]
    forest, sources = forest_of(parents, "cuda"), sources_of(parents, 4, "cuda")
    channels, weight, past = torch.randn(21, 10240), torch.randn(10240, 4), torch.randn(2, 10240, 3)
    slots = torch.tensor([1, 0], device="cuda")
    found = convolve(channels.cuda(), weight.cuda(), past.cuda(), sources, forest, slots).cpu()
    for tree, own, slot in zip(parents, (slice(0, 16), slice(16, 21)), (1, 0), strict=True):
        expected, _ = naive.convolve(channels[own], weight, past[slot], tree)
        torch.testing.assert_close(found[own].double(), expected, rtol=1e-5, atol=1e-5)


def test_rivals_agree() -> None:
    parents = [parents_of("random", 16), parents_of("deep", 16)]
    rows, states = as_dtype(delta_rows(32, LARGE), torch.bfloat16), random_states(2, LARGE)
    expected, after = reference(rows, parents, states)
    own, forest, slots = on_device(rows), forest_of(parents, "cuda"), torch.arange(2, device="cuda")
    flat = torch.tensor([parent for tree in parents for parent in tree], device="cuda")
    snapshots = torch.empty(32, LARGE.heads, LARGE.key_dim, LARGE.value_dim, device="cuda")
    output = rivals.with_snapshots(own, forest, flat, states.cuda(), slots, snapshots)
    assert relative(output.cpu(), expected) <= 2**-8
    assert relative(snapshots.cpu(), torch.cat(after)) <= 1e-6
    output = rivals.path_by_path(own, rivals.paths_of(parents, "cuda"), states.cuda(), slots)
    assert relative(output.cpu(), expected) <= 2**-8
