"""What the benchmark compares with gives the same outputs, so that the comparison is of equals."""

from __future__ import annotations

import torch

from lossguard_kernels.forests.forest import forest_of
from lossguard_kernels.wy_verify.rivals import path_by_path, paths_of, with_snapshots
from tests.kernels.wy_verify.delta_rows import Sizes, delta_rows, parents_of, reference, relative
from tests.kernels.wy_verify.test_operation import random_states


def test_rivals_agree_with_the_reference() -> None:
    sizes, parents = Sizes(value_dim=32), [parents_of("random", 9), parents_of("roots", 5)]
    rows, forest, states = delta_rows(14, sizes), forest_of(parents), random_states(3, sizes)
    slots, flat = torch.tensor([2, 0]), torch.tensor([parent for tree in parents for parent in tree])
    snapshots = torch.full((14, sizes.heads, sizes.key_dim, sizes.value_dim), float("nan"))
    expected, after = reference(rows, parents, states[slots])
    assert relative(with_snapshots(rows, forest, flat, states, slots, snapshots), expected) <= 1e-6
    assert relative(snapshots, torch.cat(after)) <= 1e-6
    paths = paths_of(parents, "cpu")
    assert relative(path_by_path(rows, paths, states, slots), expected) <= 1e-6
    assert sorted(set(paths.rows.flatten().tolist())) == list(range(14))
