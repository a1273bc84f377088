"""What the bench measures, and its table: ratios to the best of cuBLAS, shares of the byte floor, bars met or not."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

SHAPES = {
    "27B attention in": (14336, 5120),
    "27B GDN in": (16384, 5120),
    "27B out": (5120, 6144),
    "27B gate_up": (34816, 5120),
    "27B down": (5120, 17408),
    "27B lm_head": (248320, 5120),
    "8B qkv": (6144, 4096),
    "8B o": (4096, 4096),
    "8B gate_up": (24576, 4096),
    "8B down": (4096, 12288),
    "8B lm_head": (151936, 4096),
}
"""Outputs and inputs of the linear layers of Qwen3.5-27B and Qwen3-8B."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """What a set of shapes must reach: geometric mean and least of the ratios to the best of cuBLAS."""

    mean: float
    least: float


BARS = {1: Bar(mean=1.30, least=1.15), 32: Bar(mean=1.15, least=1.00)}
LARGE_BYTES = 100e6
FLOOR_BAR = 0.80


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One shape at m rows; times in microseconds."""

    name: str
    rows: int
    columns: int
    m: int
    torch_us: float
    cublaslt_us: float
    num_algorithms: int
    w12_us: float
    w12_without_overlap_us: float
    decode_us: float
    floor_us: float
    launch: dict[str, object]

    @property
    def blas_us(self) -> float:
        """The best of cuBLAS."""
        return min(self.torch_us, self.cublaslt_us)

    @property
    def ratio(self) -> float:
        """How many times faster than the best of cuBLAS."""
        return self.blas_us / self.w12_us

    @property
    def floor_fraction(self) -> float:
        """The share of the time that reading the weights would take anyway."""
        return self.floor_us / self.w12_us

    def line(self) -> str:
        """A row of the table."""
        shape = f"{self.name:17} {self.rows:6} x {self.columns:5} {self.m:3}"
        rivals = f"{self.torch_us:7.1f} {self.cublaslt_us:8.1f}"
        ours = f"{self.w12_us:7.1f} {self.w12_without_overlap_us:7.1f} {self.decode_us:7.1f}"
        times_of_ours = (self.w12_us, self.w12_without_overlap_us, self.decode_us)
        ratios = " ".join(f"{self.blas_us / time:5.2f}" for time in times_of_ours)
        return f"{shape} | {rivals} | {ours} | {ratios} | {self.floor_fraction:5.2f}"


HEADER = (
    "shape               outputs x inputs  m |  linear cublaslt |     w12   alone  decode |   w12 alone decod | floor\n"
    "                                        |   microseconds   |       microseconds      |   x best cuBLAS   |"
)


def print_table(rows: Sequence[Row]) -> None:
    """All rows, then the bars."""
    print(HEADER)
    for row in sorted(rows, key=lambda row: (row.m, list(SHAPES).index(row.name))):
        print(row.line())
    for m in sorted({row.m for row in rows}):
        print(summary([row for row in rows if row.m == m], m))
    large = [row for row in rows if row.m == 1 and 1.5 * row.rows * row.columns >= LARGE_BYTES]
    if large:
        least = min(large, key=lambda row: row.floor_fraction)
        met = "met" if least.floor_fraction >= FLOOR_BAR else "MISSED"
        found = f"at least {least.floor_fraction:.2f} of the floor ({least.name})"
        print(f"large shapes at m = 1: {found}; bar {FLOOR_BAR}: {met}")


def summary(rows: Sequence[Row], m: int) -> str:
    """Geometric mean and least ratio at m, and whether the bar is met."""
    mean = geometric_mean([row.ratio for row in rows])
    alone = geometric_mean([row.blas_us / row.w12_without_overlap_us for row in rows])
    least = min(rows, key=lambda row: row.ratio)
    text = f"m = {m}, {len(rows)} shapes: geometric mean {mean:.3f} ({alone:.3f} alone)"
    text += f", least {least.ratio:.2f} ({least.name})"
    bar = BARS.get(m)
    if bar is None:
        return text
    met = "met" if mean >= bar.mean and least.ratio >= bar.least else "MISSED"
    return f"{text}; bars {bar.mean} and {bar.least}: {met}"


def geometric_mean(values: Sequence[float]) -> float:
    """Of positive numbers."""
    return math.exp(sum(math.log(value) for value in values) / len(values))
