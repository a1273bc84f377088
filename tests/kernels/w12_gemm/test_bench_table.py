"""The table of the bench: ratios are to the best rival, and bars are judged on all shapes."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard_kernels.w12_gemm.bench_table import SHAPES, Row, geometric_mean, print_table, summary

ROW = Row(
    name="27B gate_up",
    rows=34816,
    columns=5120,
    m=1,
    torch_us=100.0,
    cublaslt_us=91.0,
    num_algorithms=8,
    w12_us=70.0,
    w12_without_overlap_us=72.0,
    decode_us=300.0,
    floor_us=63.0,
    launch={},
)


def test_ratios_are_to_the_best_rival() -> None:
    assert ROW.blas_us == 91.0
    assert ROW.ratio == pytest.approx(1.3)
    assert ROW.floor_fraction == pytest.approx(0.9)
    assert replace(ROW, torch_us=77.0).ratio == pytest.approx(1.1)
    assert " 1.30  1.26  0.30 |  0.90" in ROW.line()


@pytest.mark.parametrize(
    ("m", "times", "met"),
    [
        (1, (70.0, 70.0), "met"),
        (1, (60.0, 80.0), "MISSED"),
        (1, (71.0, 71.0), "MISSED"),
        (32, (79.0, 79.0), "met"),
        (32, (60.0, 92.0), "MISSED"),
    ],
)
def test_bars(m: int, times: tuple[float, ...], met: str) -> None:
    rows = [replace(ROW, m=m, w12_us=time) for time in times]
    assert summary(rows, m).endswith(f": {met}")


def test_other_rows_have_no_bar() -> None:
    assert "bars" not in summary([replace(ROW, m=8)], 8)


def test_the_table_has_every_row_and_the_floor(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([replace(ROW, name=name, m=m) for m in (1, 32) for name in SHAPES])
    printed = capsys.readouterr().out
    assert all(printed.count(name) >= 2 for name in SHAPES)
    assert "at least 0.90 of the floor" in printed
    assert "bar 0.8: met" in printed


@given(st.lists(st.floats(0.1, 10), min_size=1, max_size=11), st.floats(0.5, 2))
def test_the_geometric_mean_scales(values: list[float], factor: float) -> None:
    mean = geometric_mean(values)
    assert min(values) * (1 - 1e-9) <= mean <= max(values) * (1 + 1e-9)
    assert geometric_mean([value * factor for value in values]) == pytest.approx(mean * factor)
