"""Trees through delta layers beside fla's fused recurrent kernel: ``python -m benchmarks.fla_paths``, on a CUDA device.

fla (``flash-linear-attention``, or ``fla-core`` alone) runs every path to a leaf as a sequence of its own, from the
state that the tree starts from. It gets its rows and initial states gathered path by path ahead of time, in its favour,
and writes no final states; ``fla_with_gather_us`` counts gathering the states. Trees, layers and how times are taken
are those of ``lossguard_kernels.wy_verify.bench``: microseconds a layer of Qwen3.5-27B. Outputs are compared first.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from pathlib import Path

import torch
from fla.ops.gated_delta_rule import fused_recurrent_gated_delta_rule
from torch import Tensor

from benchmarks.json_lines import announced_bandwidth, emit
from lossguard_kernels.w12_gemm.measuring import QUICK, Call, microseconds
from lossguard_kernels.wy_verify import bench, operation, rivals

_TOLERANCE = 0.05
_MOST_TURNS, _MOST_BYTES = 4, 8 << 30  # layers whose gathered states take turns


@dataclass(frozen=True, slots=True, kw_only=True)
class Sequences:
    """Every path to a leaf by itself, one behind another; T rows in all, heads and channels as in ``DeltaRows``."""

    at: Tensor  # [T] int64: the forest's row
    ends: Tensor  # [paths + 1] int64: where paths begin and end
    slots: Tensor  # [paths] int64: of the state that a path starts from
    inputs: dict[str, Tensor]  # [1, T, ...]: by fla's names

    @classmethod
    def of(cls, setting: bench.Setting) -> Sequences:
        """All paths of a setting's trees."""
        paths = rivals.paths_of(setting.parents, setting.slots.device)
        rows, lengths = setting.rows, paths.lengths
        at = torch.cat([row[:length] for row, length in zip(paths.rows, lengths.tolist(), strict=True)])
        named = {"q": rows.query, "k": rows.key, "v": rows.value, "g": rows.log_decay, "beta": rows.beta}
        return cls(
            at=at,
            ends=torch.cat((lengths.new_zeros(1), lengths.cumsum(0))),
            slots=setting.slots[paths.owners],
            inputs={name: part[at].contiguous()[None] for name, part in named.items()},
        )

    def run(self, states: Tensor) -> Tensor:
        """fla's outputs [1, T, heads, value_dim] from ``states`` [paths, heads, key_dim, value_dim]."""
        outputs: Tensor = fused_recurrent_gated_delta_rule(
            **self.inputs, initial_state=states, use_qk_l2norm_in_kernel=True, cu_seqlens=self.ends
        )[0]
        return outputs

    def gather_and_run(self, states: Tensor) -> Tensor:
        """The same from ``states`` [slots, heads, key_dim, value_dim]."""
        return self.run(states.index_select(0, self.slots))


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One setting; microseconds of one layer, of all requests."""

    requests: int
    nodes: int
    paths: int
    path_rows: int
    difference: float  # the largest between both outputs, relative to the largest of ours
    ours_us: float
    fla_us: float
    fla_with_gather_us: float


def measured(setting: bench.Setting) -> Row:
    """Compare, then time."""
    sequences = Sequences.of(setting)
    requests, nodes, num_paths = len(setting.parents), len(setting.parents[0]), len(sequences.slots)
    difference = difference_of(setting, sequences)
    assert difference <= _TOLERANCE, f"fla's outputs and ours differ by {difference:.1e}"
    states = setting.states[: max(1, min(_MOST_TURNS, _MOST_BYTES // (num_paths * bench.STATE_BYTES)))]
    gathered = [layer.index_select(0, sequences.slots) for layer in states]
    return Row(
        requests=requests,
        nodes=nodes,
        paths=num_paths,
        path_rows=len(sequences.at),
        difference=difference,
        ours_us=_quick(bench.verify_calls(setting), setting),
        fla_us=_quick([partial(sequences.run, layer) for layer in gathered], setting),
        fla_with_gather_us=_quick([partial(sequences.gather_and_run, layer) for layer in states], setting),
    )


def difference_of(setting: bench.Setting, sequences: Sequences) -> float:
    """Between fla's outputs and ours, relative to the largest of ours."""
    theirs = sequences.gather_and_run(setting.states[0])[0].float()
    outputs, _ = operation.verify(setting.rows, setting.forest, setting.states[0], setting.slots)
    ours = outputs[sequences.at].float()
    return float((theirs - ours).abs().max() / ours.abs().max())


def _quick(calls: Sequence[Call], setting: bench.Setting) -> float:
    return microseconds(calls, 20.0 * len(setting.parents[0]) * len(setting.parents) ** 0.5, QUICK)


def main() -> None:
    """Measure and print; ``--out`` keeps the rows."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", nargs="*", type=int, default=[1, 8, 32])
    parser.add_argument("--nodes", nargs="*", type=int, default=[16, 64])
    parser.add_argument("--out", type=Path, default=Path("fla-paths.jsonl"))
    given = parser.parse_args()
    torch.manual_seed(0)
    announced_bandwidth()
    settings = (bench.Setting.random(*size) for size in product(given.requests, given.nodes))
    emit((asdict(measured(setting)) for setting in settings), given.out)


if __name__ == "__main__":
    main()
