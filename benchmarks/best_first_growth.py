"""Best-first trees on one accelerator: the kernel beside the same trees by torch's operations.

    python -m benchmarks.best_first_growth --out growth.jsonl

Both build the whole ``Tree`` of a policy from a lattice with pair scores, 7 depths of 16 candidates, as CUDA graphs.
The byte floor reads every pair score and candidate once and writes the tree; it is far below a launch.
"""

from __future__ import annotations

import argparse
from itertools import product
from pathlib import Path

import torch

from benchmarks.json_lines import announced_bandwidth, emit
from lossguard_kernels.w12_gemm.measuring import QUICK, microseconds
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.trees.policies import BestFirstPolicy
from lossguard_mechanisms.trees.tree import Tree

DEPTHS, CANDIDATES = 7, 16
GUESS_US = 300.0


def lattice_of(batch: int) -> Lattice:
    """Random candidates and pair scores."""
    shape = (batch, DEPTHS, CANDIDATES)
    raw = torch.randn(*shape, device="cuda").mul(2).log_softmax(-1)
    ids = torch.randint(0, 150_000, shape, device="cuda")
    edges = torch.randn(*shape, CANDIDATES, device="cuda").mul(2)
    log_probs = raw.sort(-1, descending=True).values
    return Lattice(ids=ids, log_probs=log_probs, chain=ids[:, :, 0], edges=edges, confidence=None)


def compare(batch: int, drafts: int, rate: float) -> dict[str, float | int]:
    """Microseconds of both, and the floor's."""
    lattice, anchors = lattice_of(batch), torch.zeros(batch, dtype=torch.int64, device="cuda")
    kernel, without = (BestFirstPolicy(drafts, on_edges=True, has_kernel=has_kernel) for has_kernel in (True, False))
    ours, torchs = (policy.build(lattice, anchors) for policy in (kernel, without))
    assert _equal(ours, torchs), "the trees differ"
    nodes = drafts + 1
    num_bytes = batch * (DEPTHS * CANDIDATES * (4 * CANDIDATES + 8) + 3 * 8 * nodes + nodes * nodes)
    return {
        "batch": batch,
        "drafts": drafts,
        "kernel_us": microseconds([lambda: kernel.build(lattice, anchors)], GUESS_US / 4, QUICK),
        "torch_us": microseconds([lambda: without.build(lattice, anchors)], GUESS_US, QUICK),
        "floor_us": num_bytes / rate * 1e6,
    }


def _equal(one: Tree, other: Tree) -> bool:
    pairs = [(getattr(one, name), getattr(other, name)) for name in ("tokens", "parents", "depths", "ancestors")]
    return all(torch.equal(left, right) for left, right in pairs)


def main() -> None:
    """One line per batch and number of drafts."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    torch.manual_seed(0)
    rate = announced_bandwidth()
    emit((compare(batch, drafts, rate) for batch, drafts in product((1, 8, 32), (15, 31, 63))), given.out)


if __name__ == "__main__":
    main()
