"""Speed of verifying trees through delta layers: ``python -m lossguard_kernels.wy_verify.bench``, on a CUDA device.

The layers are those of Qwen3.5-27B: 48 of them, 16 key and 48 value heads of 128 x 128. A time is the median of replays
of a CUDA graph over the states of several layers in turn, so that no state is in the cache. The byte floor of the state
traffic is what reading all states once (verify) and reading and writing them once (commit) takes at the bandwidth that
is measured first; small rows of inputs, outputs and stash are not in it. Nothing is timed before it is found right.
"""

from __future__ import annotations

import argparse
import json
import random
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lossguard_kernels.forests.forest import Forest, forest_of
from lossguard_kernels.w12_gemm.measuring import QUICK, microseconds, read_bandwidth
from lossguard_kernels.wy_verify import naive, operation, rivals
from lossguard_kernels.wy_verify.launch_sizes import LaunchSizes
from lossguard_kernels.wy_verify.rows import DeltaRows, Stash, StashShape, empty_pending, empty_stash

LAYERS, KEY_HEADS, HEADS, DIM = 48, 16, 48, 128
STATE_BYTES = HEADS * DIM * DIM * 4
FLOOR_BAR = 0.6
_TURNS = 8  # layers whose states take turns
_STATE_TOLERANCE, _OUTPUT_TOLERANCE = 1e-6, 2e-2


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Operands of ``_TURNS`` layers."""

    parents: list[list[int]]
    forest: Forest
    rows: DeltaRows
    states: Tensor  # [turns, requests, heads, key_dim, value_dim]
    slots: Tensor
    stash: Stash
    last: Tensor

    @classmethod
    def random(cls, requests: int, nodes: int) -> Setting:
        """Trees that branch about every third node, a new one for every request."""
        draw = random.Random(nodes)
        parents = [[max(-1, node - 1 - draw.choice((0, 0, 1, 2))) for node in range(nodes)] for _ in range(requests)]
        parents = [[-1, *(max(0, parent) for parent in tree[1:])] for tree in parents]
        num = requests * nodes
        channels = torch.randn(num, (2 * KEY_HEADS + HEADS) * DIM, device="cuda").bfloat16()
        key, query, value = channels.split((KEY_HEADS * DIM, KEY_HEADS * DIM, HEADS * DIM), dim=1)
        rows = DeltaRows(
            query=query.unflatten(1, (KEY_HEADS, DIM)),
            key=key.unflatten(1, (KEY_HEADS, DIM)),
            value=value.unflatten(1, (HEADS, DIM)),
            log_decay=-0.1 * torch.rand(num, HEADS, device="cuda"),
            beta=torch.rand(num, HEADS, device="cuda").bfloat16(),
        )
        return cls(
            parents=parents,
            forest=forest_of(parents, "cuda"),
            rows=rows,
            states=torch.randn(_TURNS, requests, HEADS, DIM, DIM, device="cuda") * 0.1,
            slots=torch.randperm(requests, device="cuda"),
            stash=empty_stash(shape_of(num), "cuda"),
            last=torch.full((requests,), nodes // 2, device="cuda"),
        )


def shape_of(num_rows: int) -> StashShape:
    """Of a stash of ``_TURNS`` layers."""
    return StashShape(
        layers=_TURNS,
        rows=num_rows,
        key_heads=KEY_HEADS,
        heads=HEADS,
        key_dim=DIM,
        value_dim=DIM,
        dtype=torch.bfloat16,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting; times of one layer in microseconds, of all requests."""

    requests: int
    nodes: int
    verify_us: float
    deferred_us: float  # a verification with 32 deferred rows, in place of verify and commit
    commit_us: float
    snapshots_us: float
    copy_us: float  # a snapshot's commit
    paths_us: float
    num_paths: int
    bytes_per_second: float
    state_error: float
    output_error: float

    @property
    def floor_us(self) -> float:
        """Reading the states once."""
        return self.requests * STATE_BYTES / self.bytes_per_second * 1e6

    def line(self) -> str:
        """A row of the table."""
        ours, both = self.verify_us + self.commit_us, self.snapshots_us + self.copy_us
        times = f"{self.verify_us:8.1f} {self.commit_us:8.1f} {self.deferred_us:8.1f}"
        theirs = f"{self.snapshots_us:9.1f} {self.copy_us:8.1f} {self.paths_us:8.1f} {self.num_paths:5}"
        shares = f"{self.floor_us / self.verify_us:6.2f} {3 * self.floor_us / ours:6.2f}"
        gains = f"{both / ours:6.2f} {self.paths_us / self.verify_us:6.2f}"
        states = self.requests * STATE_BYTES * LAYERS / 1e9
        sizes = f"{states:6.2f} {states * self.nodes:7.1f} {self.stash_bytes / 1e9:6.2f}"
        return f"{self.requests:4} {self.nodes:5} | {times} | {theirs} | {shares} | {gains} | {sizes}"

    @property
    def stash_bytes(self) -> int:
        """Of all layers."""
        return replace(shape_of(self.requests * self.nodes), layers=LAYERS).num_bytes


HEADER = (
    "request node |  verify   commit deferred | snapshots   copy    paths  leaf | of the floor | times as   | GB of all 48 layers\n"  # noqa: E501
    "             |     us, one layer         |         us, one layer           | verify both | fast       | states snaps stash"  # noqa: E501
)


def measured(setting: Setting, bandwidth: float) -> Row:
    """Check one setting, then time it."""
    state_error, output_error = errors_of(setting)
    assert state_error <= _STATE_TOLERANCE, f"states are wrong by {state_error:.1e}"
    assert output_error <= _OUTPUT_TOLERANCE, f"outputs are wrong by {output_error:.1e}"
    requests, nodes = len(setting.parents), len(setting.parents[0])
    guess = max(5.0, 3e6 * requests * STATE_BYTES / bandwidth)
    deferred, commit = _deferred_calls(setting), lambda: _commit(setting)
    flat = torch.tensor([parent for tree in setting.parents for parent in tree], device="cuda")
    paths = rivals.paths_of(setting.parents, "cuda")
    snapshots = torch.empty(requests * nodes, HEADS, DIM, DIM, device="cuda")
    first = setting.forest.firsts + setting.last
    walks = [
        lambda s=s: rivals.with_snapshots(setting.rows, setting.forest, flat, s, setting.slots, snapshots)
        for s in setting.states
    ]
    copies = [lambda s=s: s.index_copy_(0, setting.slots, snapshots.index_select(0, first)) for s in setting.states]
    alone = [lambda s=s: rivals.path_by_path(setting.rows, paths, s, setting.slots) for s in setting.states]
    return Row(
        requests=requests,
        nodes=nodes,
        verify_us=microseconds(verify_calls(setting), guess),
        deferred_us=microseconds(deferred, guess),
        commit_us=microseconds([commit], _TURNS * guess) / _TURNS,
        snapshots_us=microseconds(walks, nodes * guess, QUICK),
        copy_us=microseconds(copies, guess),
        paths_us=microseconds(alone, nodes * guess, QUICK),
        num_paths=len(paths.lengths),
        bytes_per_second=bandwidth,
        state_error=state_error,
        output_error=output_error,
    )


def verify_calls(setting: Setting, sizes: LaunchSizes | None = None) -> list[Callable[[], object]]:
    """One verification for each of the layers."""
    return [
        lambda i=i: operation.verify(  # type: ignore[misc]
            setting.rows, setting.forest, setting.states[i], setting.slots, stash=setting.stash.layer(i), sizes=sizes
        )
        for i in range(_TURNS)
    ]


def _deferred_calls(setting: Setting) -> list[Callable[[], object]]:
    pending = empty_pending(shape_of(1), len(setting.parents), 32, "cuda")
    for tensor in (pending.stash.keys, pending.stash.units, pending.stash.updates):
        tensor.normal_()
    pending.stash.totals.zero_()
    pending.counts.fill_(32)
    return [
        lambda i=i: operation.verify(  # type: ignore[misc]
            setting.rows,
            setting.forest,
            setting.states[i],
            setting.slots,
            stash=setting.stash.layer(i),
            pending=operation.layer_of(pending, i),
        )
        for i in range(_TURNS)
    ]


def _commit(setting: Setting) -> None:
    operation.commit(setting.stash, setting.forest, setting.last, setting.states, setting.slots)


def errors_of(setting: Setting) -> tuple[float, float]:
    """Of the state after the first request's path, and of its outputs, relative to the largest entries in float64."""
    nodes, slot = len(setting.parents[0]), int(setting.slots[0])
    rows = DeltaRows(**{name: getattr(setting.rows, name)[:nodes].cpu() for name in DeltaRows.__slots__})
    outputs, states = naive.recur(rows, setting.parents[0], setting.states[0, slot].cpu())
    found = [call() for call in verify_calls(setting)][0]  # noqa: RUF015  (the commit below takes all layers' rows)
    assert isinstance(found, tuple), "a verification gives outputs and a stash"
    _commit(setting)
    expected = states[int(setting.last[0])]
    state_error = (setting.states[0, slot].cpu() - expected).abs().max() / expected.abs().max()
    output_error = (found[0][:nodes].cpu() - outputs).abs().max() / outputs.abs().max()
    return float(state_error), float(output_error)


def sweep(setting: Setting, bandwidth: float) -> None:
    """Times of all sizes of a verification's programs."""
    guess = max(5.0, 2e6 * len(setting.parents) * STATE_BYTES / bandwidth)
    for block in (128, 64, 32):
        for part in (16, 32, 64):
            for warps in (4, 8):
                for stages in (2, 3, 4):
                    sizes = LaunchSizes(block=block, part=part, warps=warps, stages=stages)
                    took = microseconds(verify_calls(setting, sizes), guess, QUICK)
                    print(f"  {took:8.1f} us  {sizes}", flush=True)


def main() -> None:
    """Measure and print; ``--out`` keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--nodes", nargs="*", type=int, default=[16, 64])
    parser.add_argument("--sweep", action="store_true", help="time other sizes of programs too")
    parser.add_argument("--out", type=Path, default=Path("wy-verify.jsonl"))
    given = parser.parse_args()
    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}: reads {bandwidth / 1e12:.2f} TB/s\n{HEADER}", flush=True)
    for requests in given.requests:
        for nodes in given.nodes:
            setting = Setting.random(requests, nodes)
            row = measured(setting, bandwidth)
            print(row.line(), flush=True)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
            if given.sweep:
                sweep(setting, bandwidth)
    print(f"bar: {FLOOR_BAR} of the floor at 32 requests")


if __name__ == "__main__":
    main()
