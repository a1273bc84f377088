"""Speed of products with W12 weights beside cuBLAS: ``python -m lossguard_kernels.w12_gemm.bench``.

Every time is the median of replays of a CUDA graph, over operands that together exceed three times the L2 cache. The
rival is the best of torch's ``linear`` and of the eight algorithms that cuBLASLt's heuristics rank first, each timed.
Results are appended to a file as they come, and shapes that are in it are skipped, so a run can be cut and continued.
"""

from __future__ import annotations

import argparse
import json
import math
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor
from torch.nn.functional import linear

from lossguard.errors import EngineError
from lossguard_kernels.w12_gemm.bench_table import SHAPES, Row, print_table
from lossguard_kernels.w12_gemm.candidates import Shape, shortlist
from lossguard_kernels.w12_gemm.choosing import Timed, choose, remember, shape_key, table_path
from lossguard_kernels.w12_gemm.cublaslt import CublasLt
from lossguard_kernels.w12_gemm.launching import device_of
from lossguard_kernels.w12_gemm.measuring import QUICK, Call, microseconds, read_bandwidth
from lossguard_kernels.w12_gemm.operation import decode, fused_linear
from lossguard_kernels.w12_gemm.program import cache_folder
from lossguard_kernels.w12_gemm.variants import Launch
from lossguard_kernels.w12_gemm.weights import KernelWeights
from lossguard_mechanisms.weights.w12.codec import encode

_CACHES = 3
_TOLERANCE = 4e-3
"""Relative to the norm of the outputs: rounding to bf16 alone gives 1.7e-3."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operands:
    """Weights that together exceed the cache, dense and in W12."""

    dense: list[Tensor]
    coded: list[KernelWeights]

    @classmethod
    def random(cls, rows: int, columns: int) -> Operands:
        """Gaussian weights as a trained layer has them; copies of one matrix in memory of their own."""
        first = (torch.randn(rows, columns, device="cuda") * 0.02).to(torch.bfloat16)
        coded = KernelWeights.pack(encode(first))
        cache = torch.cuda.get_device_properties("cuda").L2_cache_size
        num_copies = -(-_CACHES * cache // coded.num_bytes)
        return cls(
            dense=[first, *(first.clone() for _ in range(num_copies - 1))],
            coded=[coded, *(_copy(coded) for _ in range(num_copies - 1))],
        )


def _copy(weights: KernelWeights) -> KernelWeights:
    tensors = [tensor.clone() for tensor in weights.tensors().values()]
    return KernelWeights.of_tensors(tensors, rows=weights.rows, columns=weights.columns)


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """What all shapes share."""

    blas: CublasLt
    bytes_per_second: float
    num_candidates: int

    def row(self, name: str, operands: Operands, m: int) -> Row:
        """Measure one shape at m rows."""
        rows, columns = operands.dense[0].shape
        x = torch.randn(m, columns, device="cuda").to(torch.bfloat16)
        guess = max(4.0, 2e6 * rows * columns / self.bytes_per_second)
        torch_time = microseconds([lambda w=w: linear(x, w) for w in operands.dense], guess)  # type: ignore[misc]
        blas_time, num_algorithms = self._blas(operands, x, guess)
        timed = self._tuned(operands, x, guess)
        _require_right(x, operands, timed.launch)
        alone = microseconds(_fused_calls(operands, x, timed.launch, overlap=False), guess)
        decoded = microseconds([lambda w=w: linear(x, decode(w)) for w in operands.coded], 3 * guess, QUICK)  # type: ignore[misc]
        return Row(
            name=name,
            rows=rows,
            columns=columns,
            m=m,
            torch_us=torch_time,
            cublaslt_us=blas_time,
            num_algorithms=num_algorithms,
            w12_us=timed.microseconds,
            w12_without_overlap_us=alone,
            decode_us=decoded,
            floor_us=operands.coded[0].num_bytes / self.bytes_per_second * 1e6,
            launch=asdict(timed.launch),
        )

    def _blas(self, operands: Operands, x: Tensor, guess: float) -> tuple[float, int]:
        """The best of cuBLASLt's first eight, and how many there were."""
        rows, columns = operands.dense[0].shape
        y = torch.empty(x.shape[0], rows, dtype=torch.bfloat16, device="cuda")
        runs = self.blas.algorithms(x.shape[0], rows, columns)
        calls = [[lambda w=w, run=run: run(x, w, y) for w in operands.dense] for run in runs]
        times = [microseconds(one, guess, QUICK) for one in calls]
        best = min(range(len(times)), key=times.__getitem__)
        return microseconds(calls[best], guess), len(runs)

    def _tuned(self, operands: Operands, x: Tensor, guess: float) -> Timed:
        weights = operands.coded[0]
        shape = Shape(num_bands=weights.num_bands, num_tiles=weights.num_tiles, m=x.shape[0])
        device = device_of(torch.cuda.current_device())
        found = tuple(dict.fromkeys((choose(shape, device).launch, *shortlist(shape, device, self.num_candidates))))
        times = [self._time(operands, x, launch, guess) for launch in found]
        best = found[min(range(len(times)), key=times.__getitem__)]
        timed = Timed(launch=best, microseconds=microseconds(_fused_calls(operands, x, best), guess))
        remember({shape_key(shape): timed}, table_path(cache_folder(), device))
        for launch, took in sorted(zip(found, times, strict=True), key=lambda pair: pair[1]):
            print(f"      {took:8.2f} us  {_described(launch)}", flush=True)
        return timed

    def _time(self, operands: Operands, x: Tensor, launch: Launch, guess: float) -> float:
        """Microseconds of a candidate; infinite, and said, if the device refuses it."""
        try:
            return microseconds(_fused_calls(operands, x, launch), guess, QUICK)
        except EngineError as error:
            print(f"      refused: {_described(launch)}: {error.found}", flush=True)
            return math.inf


def _described(launch: Launch) -> str:
    v = launch.variant
    form = f"bands {v.bands} warps {v.warps_n}x{v.warps_k} tiles {v.k_tiles} stages {v.stages} blocks {v.min_blocks}"
    return f"{form}; parts {launch.parts} slices {launch.slices}"


def _fused_calls(operands: Operands, x: Tensor, launch: Launch, *, overlap: bool = True) -> list[Call]:
    return [
        lambda w=w: fused_linear(x, w, launch=launch, overlap=overlap)  # type: ignore[misc]
        for w in operands.coded
    ]


def _require_right(x: Tensor, operands: Operands, launch: Launch) -> None:
    """A kernel that is wrong is not worth timing."""
    found, again = (fused_linear(x, operands.coded[0], launch=launch) for _ in range(2))
    assert torch.equal(found, again), "the product differs from run to run"
    sum_of_squares = norm = 0.0
    for rows, out in zip(operands.dense[0].split(16384), found.split(16384, dim=1), strict=True):
        expected = x.double() @ rows.double().T
        sum_of_squares += float((out.double() - expected).square().sum())
        norm += float(expected.square().sum())
    error = (sum_of_squares / norm) ** 0.5
    assert error < _TOLERANCE, f"the product is wrong: relative error {error:.1e}"


def main() -> None:
    """Measure, print and keep."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("w12-gemm.jsonl"), help="where results are kept")
    parser.add_argument("--seconds", type=float, default=1e9, help="start no further shape after this time")
    parser.add_argument("--shapes", nargs="*", choices=list(SHAPES), default=list(SHAPES))
    parser.add_argument("--m", nargs="*", type=int, default=[1, 8, 16, 32])
    parser.add_argument("--candidates", type=int, default=24, help="launches timed beside the known one")
    given = parser.parse_args()
    started = time.perf_counter()
    bandwidth = read_bandwidth()
    print(f"{torch.cuda.get_device_name()}: reads {bandwidth / 1e12:.2f} TB/s", flush=True)
    bench = Bench(blas=CublasLt(), bytes_per_second=bandwidth, num_candidates=given.candidates)
    for name, missing in _missing(given.out, given.shapes, given.m):
        if time.perf_counter() - started > given.seconds:
            break
        operands = Operands.random(*SHAPES[name])
        for m in missing:
            row = bench.row(name, operands, m)
            print(row.line(), flush=True)
            with given.out.open("a", encoding="utf-8") as file:
                file.write(json.dumps(asdict(row)) + "\n")
    print_table(_read(given.out))


def _missing(out: Path, names: list[str], ms: list[int]) -> Iterator[tuple[str, list[int]]]:
    """Shapes that are not measured at every m, smallest first."""
    done = {(row.name, row.m) for row in _read(out)}
    for name in sorted(names, key=lambda name: SHAPES[name][0] * SHAPES[name][1]):
        missing = [m for m in ms if (name, m) not in done]
        if missing:
            yield name, missing


def _read(out: Path) -> list[Row]:
    if not out.is_file():
        return []
    return [Row(**json.loads(line)) for line in out.read_text(encoding="utf-8").splitlines()]


if __name__ == "__main__":
    main()
