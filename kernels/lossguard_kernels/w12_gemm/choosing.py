"""Which launch a product uses: what was timed on this device for its shape, else what was shipped, else a guess."""

from __future__ import annotations

import functools
import json
import os
import re
from dataclasses import asdict, dataclass
from pathlib import Path

from lossguard_kernels.w12_gemm.candidates import Shape, candidates
from lossguard_kernels.w12_gemm.failures import damaged_table, no_launch
from lossguard_kernels.w12_gemm.program import cache_folder
from lossguard_kernels.w12_gemm.variants import X_ROWS, Device, Launch, Variant, x_rows_for

VERSION = 2
SHIPPED = Path(__file__).with_name("tuned")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """A launch, and why it was chosen."""

    launch: Launch
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Timed:
    """A launch and its measured time."""

    launch: Launch
    microseconds: float


@functools.cache
def choose(shape: Shape, device: Device) -> Choice:
    """The launch for a shape. Raises UsageError LG1706 where none fits, EngineError LG1707 for a damaged table."""
    for folder, source in ((cache_folder(), "timed on this machine"), (SHIPPED, "timed by lossguard")):
        found = read_table(table_path(folder, device)).get(shape_key(shape))
        if found is not None:
            rounded = "" if shape.m in X_ROWS else f" for {x_rows_for(shape.m)} rows"
            return Choice(launch=found.launch, reason=f"{source}{rounded}: {found.microseconds:.1f} us")
    possible = candidates(shape, device)
    if not possible:
        raise no_launch(f"{16 * shape.num_bands} x {64 * shape.num_tiles}, {shape.m} rows")
    return Choice(launch=possible[0], reason="not timed: the best guess of the model of bytes")


def shape_key(shape: Shape) -> str:
    """The name of a shape in a table; rows of x count as the next number that the kernel is compiled for."""
    plane = "-hi" if shape.hi_only else ""
    return f"{16 * shape.num_bands}x{64 * shape.num_tiles}-{x_rows_for(shape.m)}{plane}"


def table_path(folder: Path, device: Device) -> Path:
    """The table of a kind of device."""
    slug = re.sub(r"[^a-z0-9]+", "-", device.name.lower()).strip("-")
    return folder / f"launches-{slug}-{device.num_multiprocessors}.json"


def read_table(path: Path) -> dict[str, Timed]:
    """Timed launches by shape; empty if there is no table. Raises EngineError LG1707."""
    if not path.is_file():
        return {}
    try:
        stored = json.loads(path.read_text(encoding="utf-8"))
        if stored["version"] != VERSION:
            return {}
        return {key: _timed_from(entry) for key, entry in stored["launches"].items()}
    except (ValueError, KeyError, TypeError) as error:
        raise damaged_table(str(path), str(error)) from error


def remember(found: dict[str, Timed], path: Path) -> None:
    """Add timed launches to a table."""
    launches = read_table(path) | found
    entries = {key: _entry_of(timed) for key, timed in sorted(launches.items())}
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_suffix(f".{os.getpid()}.partial")
    partial.write_text(json.dumps({"version": VERSION, "launches": entries}, indent=1) + "\n", encoding="utf-8")
    partial.replace(path)
    choose.cache_clear()


def _entry_of(timed: Timed) -> dict[str, object]:
    launch = timed.launch
    return {
        "variant": asdict(launch.variant),
        "parts": launch.parts,
        "slices": launch.slices,
        "microseconds": round(timed.microseconds, 2),
    }


def _timed_from(entry: dict[str, object]) -> Timed:
    variant, parts, slices, time = entry["variant"], entry["parts"], entry["slices"], entry["microseconds"]
    if not (isinstance(variant, dict) and isinstance(parts, int) and isinstance(slices, int)):
        raise TypeError("a launch has a variant, parts and slices")
    if not isinstance(time, (int, float)):
        raise TypeError("a time is a number")
    launch = Launch(variant=Variant(**variant), parts=parts, slices=slices)
    return Timed(launch=launch, microseconds=float(time))
