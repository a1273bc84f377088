"""Launches: which are possible, which is chosen, what is kept."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import EngineError, UsageError
from lossguard_kernels.w12_gemm.bench_table import SHAPES
from lossguard_kernels.w12_gemm.candidates import Shape, candidates, guessed_microseconds, shortlist, variants_for
from lossguard_kernels.w12_gemm.choosing import SHIPPED, Timed, choose, read_table, remember, shape_key, table_path
from lossguard_kernels.w12_gemm.variants import X_ROWS, Device, x_rows_for

H200 = Device(name="NVIDIA H200", num_multiprocessors=132, shared_bytes_per_block=232_448)
SMALL = Device(name="Consumer card", num_multiprocessors=170, shared_bytes_per_block=101_376)
GATE_UP = Shape(num_bands=2176, num_tiles=80, m=1)


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSGUARD_KERNEL_CACHE", str(tmp_path))
    choose.cache_clear()


@pytest.mark.parametrize("device", [H200, SMALL], ids=lambda device: device.name)
@pytest.mark.parametrize("x_rows", X_ROWS)
def test_every_form_fits_the_device(x_rows: int, device: Device) -> None:
    for hi_only in (False, True):
        found = variants_for(x_rows, device, hi_only=hi_only)
        assert found
        for variant in found:
            assert variant.shared_bytes * variant.min_blocks <= device.shared_bytes_per_block
            assert variant.num_threads * variant.min_blocks <= 1024
            assert variant.stages >= 2
            assert variant.k_tiles % variant.warps_k == 0


@given(num_bands=st.integers(1, 20_000), num_tiles=st.integers(1, 300), m=st.integers(1, 64))
def test_launches_cover_every_shape(num_bands: int, num_tiles: int, m: int) -> None:
    shape = Shape(num_bands=num_bands, num_tiles=num_tiles, m=m)
    found = candidates(shape, H200)
    assert found
    for launch in found:
        assert 1 <= launch.parts <= num_bands
        assert (launch.parts - 1) * -(-num_bands // launch.parts) < num_bands  # fewer blocks would be no slower
        assert 1 <= launch.slices <= num_tiles
        assert launch.parts * launch.slices <= 132 * launch.variant.min_blocks
        assert launch.variant.x_rows == x_rows_for(m)
    guesses = [guessed_microseconds(launch, shape, H200) for launch in found]
    assert guesses == sorted(guesses)


@pytest.mark.parametrize("m", [1, 8, 32])
def test_a_shortlist_tries_several_grids(m: int) -> None:
    found = shortlist(Shape(num_bands=320, num_tiles=96, m=m), H200, 12)
    assert len(found) == len(set(found)) == 12
    assert len({(launch.parts, launch.slices) for launch in found}) >= 4
    assert found[0] == candidates(Shape(num_bands=320, num_tiles=96, m=m), H200)[0]


def test_two_products_can_share_a_multiprocessor() -> None:
    """Some forms leave room for the blocks of the next product."""
    found = candidates(GATE_UP, H200)
    assert any(launch.variant.min_blocks == 2 and launch.parts * launch.slices <= 132 for launch in found)


def test_the_guess_is_near_the_floor_for_large_shapes() -> None:
    floor = 2176 * 80 * 1536 / 4.4e6
    best = guessed_microseconds(candidates(GATE_UP, H200)[0], GATE_UP, H200)
    assert floor < best < 1.25 * floor


def test_the_shipped_table_fits_its_device() -> None:
    table = read_table(table_path(SHIPPED, H200))
    assert len(table) == 4 * len(SHAPES)
    for (rows, columns), m in product(SHAPES.values(), (1, 8, 16, 32)):
        shape = Shape(num_bands=rows // 16, num_tiles=columns // 64, m=m)
        launch = table[shape_key(shape)].launch
        variant = launch.variant
        assert variant.x_rows == x_rows_for(m)
        assert variant.shared_bytes * variant.min_blocks <= H200.shared_bytes_per_block
        assert launch.parts * launch.slices <= 132 * variant.min_blocks
        assert variant.k_tiles % variant.warps_k == 0
        assert choose(shape, H200).reason.startswith("timed by lossguard")


def test_what_was_timed_wins_and_is_kept(tmp_path: Path) -> None:
    shape = Shape(num_bands=777, num_tiles=77, m=3)
    guess = choose(shape, H200)
    assert guess.reason.startswith("not timed")
    other = candidates(shape, H200)[5]
    assert other != guess.launch
    remember({shape_key(shape): Timed(launch=other, microseconds=12.345)}, table_path(tmp_path, H200))
    chosen = choose(shape, H200)
    assert chosen.launch == other
    assert chosen.reason == "timed on this machine for 8 rows: 12.3 us"
    assert choose(shape, SMALL).reason.startswith("not timed")
    assert choose(Shape(num_bands=777, num_tiles=77, m=9), H200).reason.startswith("not timed")


def test_tables_add_up(tmp_path: Path) -> None:
    path, launches = tmp_path / "table.json", candidates(GATE_UP, H200)
    remember({"a": Timed(launch=launches[0], microseconds=1.0)}, path)
    remember({"b": Timed(launch=launches[1], microseconds=2.0)}, path)
    assert {key: timed.launch for key, timed in read_table(path).items()} == {"a": launches[0], "b": launches[1]}


@pytest.mark.parametrize("text", ["{", '{"version": 2}', '{"version": 2, "launches": {"a": {}}}', "[]"])
def test_a_damaged_table_is_an_error(text: str, tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text(text)
    with pytest.raises(EngineError) as caught:
        read_table(path)
    assert caught.value.code == "LG1707"


def test_a_table_of_another_version_is_ignored(tmp_path: Path) -> None:
    path = tmp_path / "table.json"
    path.write_text('{"version": 99, "launches": 5}')
    assert read_table(path) == {}


def test_a_device_without_room_is_refused() -> None:
    tiny = Device(name="tiny", num_multiprocessors=4, shared_bytes_per_block=4096)
    with pytest.raises(UsageError) as caught:
        choose(GATE_UP, tiny)
    assert caught.value.code == "LG1706"
