"""Which forms the kernel is compiled in, what each needs, and which of them are worth trying for a shape."""

from __future__ import annotations

from dataclasses import asdict, dataclass

from lossguard_kernels.w12_gemm.weights import BAND_ROWS

X_ROWS = (1, 8, 16, 32, 64)
"""Rows of x that the kernel is compiled for; more rows go through decode and cuBLAS."""

MAX_M = X_ROWS[-1]
_HI_TILE_BYTES, _LO_TILE_BYTES = 1024, 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """One compiled form: ``bands`` a warp at once, warps along N and K, tiles of 64 columns a stage, stages."""

    x_rows: int
    bands: int
    warps_n: int
    warps_k: int
    k_tiles: int
    stages: int
    min_blocks: int = 1
    hi_only: bool = False

    @property
    def block_bands(self) -> int:
        """Bands that a block works on at a time."""
        return self.bands * self.warps_n

    @property
    def num_threads(self) -> int:
        """Consumer warps, two producer warps, and one to four for escapes, so that a quarter of them is whole."""
        return 32 * ((self.warps_n * self.warps_k + 2) // 4 + 1) * 4

    @property
    def column_tiles(self) -> int:
        """Fragments of 8 rows of x."""
        return -(-self.x_rows // 8)

    @property
    def stage_bytes(self) -> int:
        """Shared memory of one stage."""
        tile = _HI_TILE_BYTES + (0 if self.hi_only else _LO_TILE_BYTES)
        x = self.x_rows * (self.k_tiles * 128 + 16)
        return -(-(self.block_bands * self.k_tiles * tile + x) // 128) * 128

    @property
    def shared_bytes(self) -> int:
        """Shared memory of a block."""
        sums = (self.warps_k - 1) * self.block_bands * self.column_tiles * 512
        escapes = 0 if self.hi_only else self.block_bands * self.column_tiles * 512
        return self.stages * self.stage_bytes + sums + escapes + 24 * self.stages + 16

    def defines(self) -> tuple[str, ...]:
        """The compiler's options."""
        return tuple(f"-D{name.upper()}={int(value)}" for name, value in asdict(self).items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """A variant and its grid: ``parts`` along the bands times ``slices`` along the columns."""

    variant: Variant
    parts: int
    slices: int

    def partial_floats(self, num_bands: int) -> int:
        """Size of the workspace of split-K, in float32."""
        return 0 if self.slices == 1 else num_bands * self.slices * self.variant.column_tiles * 128


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """What of a device decides which launches are possible."""

    name: str
    num_multiprocessors: int
    shared_bytes_per_block: int


def x_rows_for(m: int) -> int:
    """The smallest compiled number of rows that holds m."""
    return next(rows for rows in X_ROWS if rows >= m)


def bytes_of_busiest(launch: Launch, num_bands: int, num_tiles: int, m: int) -> float:
    """Bytes that the block with most work reads: its weights, and x once for every group of bands."""
    variant = launch.variant
    bands = -(-num_bands // launch.parts)
    tiles = -(-num_tiles // launch.slices)
    groups = -(-bands // variant.block_bands)
    weights = BAND_ROWS * 64 * (1.0 if variant.hi_only else 1.5) * bands * tiles
    return weights + groups * tiles * 128 * m
