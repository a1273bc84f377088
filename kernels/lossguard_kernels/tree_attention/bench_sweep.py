"""Other tiles and parts than the shipped ones: ``python -m lossguard_kernels.tree_attention.bench --sweep``.

Every candidate is checked against the reference, of the first and the last request, before it is timed. Few of them, so
that all settings of the bench take a minute with what is compiled.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import torch
from torch import Tensor

from lossguard_kernels.tree_attention import naive
from lossguard_kernels.tree_attention.bench_setting import Setting
from lossguard_kernels.tree_attention.operation import Plan, attend, plan_of
from lossguard_kernels.tree_attention.tiles import Tiles, device_of
from lossguard_kernels.w12_gemm.measuring import QUICK, microseconds

_TOLERANCE = 1e-2
_ONE_GROUP = ((32, 3), (64, 2), (64, 3))  # columns and stages
_WIDE_HEADS = (
    Tiles(rows=128, columns=32, stages=4, warps=8),
    Tiles(rows=128, columns=64, stages=2, warps=8),
    Tiles(rows=64, columns=32, stages=3, warps=4),
    Tiles(rows=64, columns=32, stages=2, warps=4),
)
_NARROW_HEADS = (
    Tiles(rows=128, columns=64, stages=4, warps=8),
    Tiles(rows=128, columns=64, stages=3, warps=8),
    Tiles(rows=128, columns=128, stages=2, warps=8),
    Tiles(rows=64, columns=64, stages=3, warps=4),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """One candidate; microseconds of one layer, or None with what went wrong."""

    shape: str
    requests: int
    nodes: int
    past: int
    tiles: Tiles
    parts: int
    is_shipped: bool
    took_us: float | None
    floor_us: float
    wrong: str = ""

    def line(self) -> str:
        """A row of the table."""
        sizes = f"{self.shape:4} {self.requests:4} {self.nodes:5} {self.past:6}"
        used = f"{self.tiles.rows:3} x {self.tiles.columns:3}, {self.tiles.stages} stages, {self.tiles.warps} warps"
        took = self.wrong if self.took_us is None else f"{self.took_us:9.1f} us {self.floor_us / self.took_us:5.2f}"
        return f"{sizes} | {took} | {used}, {self.parts:2} parts{'  shipped' if self.is_shipped else ''}"


def sweep(name: str, setting: Setting, bandwidth: float, out: Path) -> None:
    """Print the shipped choice and the best; all go to ``out``."""
    expected, floor = references(setting), setting.num_bytes / bandwidth * 1e6
    shipped = plan_of(setting.query, setting.pools[0][0], setting.pages, setting.forest)
    found = [
        _tried(name, setting, plan, floor, expected, is_shipped=plan == shipped) for plan in _plans(setting, shipped)
    ]
    with out.open("a", encoding="utf-8") as file:
        file.writelines(json.dumps(asdict(one)) + "\n" for one in found)
    right = sorted((one for one in found if one.took_us), key=lambda one: one.took_us or 0.0)
    for one in [*right[:2], *(one for one in found if one.wrong or (one.is_shipped and one not in right[:2]))]:
        print(one.line(), flush=True)


def _plans(setting: Setting, shipped: Plan) -> list[Plan]:
    """The shipped one first, then other parts of it and other tiles with the parts that are chosen for them."""
    num_rows, dim = setting.num_rows, setting.query.shape[2]
    others: tuple[Tiles, ...]
    if num_rows <= 32:
        others = tuple(replace(shipped.tiles, columns=columns, stages=stages) for columns, stages in _ONE_GROUP)
    elif num_rows <= 64:
        others = tuple(replace(shipped.tiles, columns=columns, stages=stages) for columns, stages in _ONE_GROUP[:2])
    else:
        others = _WIDE_HEADS if dim > 128 else _NARROW_HEADS
    room = device_of(setting.query.device).shared_bytes
    others = tuple(tiles for tiles in others if tiles.shared_bytes(dim, setting.query.dtype.itemsize) <= room)
    operands = setting.query, setting.pools[0][0], setting.pages, setting.forest
    plans = [shipped, *(plan_of(*operands, tiles=tiles) for tiles in others)]
    most = -(-(setting.past + len(setting.parents[0])) // shipped.tiles.columns)
    parts = {max(1, shipped.parts // 2), min(most, shipped.parts * 2), min(most, shipped.parts * 3)}
    plans += [plan_of(*operands, tiles=shipped.tiles, num_splits=num) for num in sorted(parts)]
    return list(dict.fromkeys(plans))[:8]


def _tried(name: str, setting: Setting, plan: Plan, floor: float, expected: Tensor, *, is_shipped: bool) -> Found:
    one = Found(
        shape=name,
        requests=len(setting.parents),
        nodes=len(setting.parents[0]),
        past=setting.past,
        tiles=plan.tiles,
        parts=plan.parts,
        is_shipped=is_shipped,
        took_us=None,
        floor_us=floor,
    )
    error = error_of(setting, expected, plan)
    if not error <= _TOLERANCE:
        return replace(one, wrong=f"wrong by {error:.1e}")
    return replace(one, took_us=microseconds(setting.calls(plan.tiles, plan.parts), max(10.0, 2 * floor), QUICK))


def references(setting: Setting) -> Tensor:
    """[2, nodes, heads, dim] float64: the outputs of the first and the last request."""
    keys, values = setting.pools[0]
    nodes = len(setting.parents[0])
    ends = []
    for place in (0, len(setting.parents) - 1):
        pages = replace(
            setting.pages,
            table=setting.pages.table[place : place + 1],
            past_lengths=setting.pages.past_lengths[place : place + 1],
        )
        query = setting.query[place * nodes : (place + 1) * nodes]
        ends.append(naive.attend(query, keys, values, pages, setting.parents[place : place + 1]))
    return torch.stack(ends)


def error_of(setting: Setting, expected: Tensor, plan: Plan | None = None) -> float:
    """The largest difference from ``references``, by the largest of them; NaN if anything is."""
    tiles, parts = (plan.tiles, plan.parts) if plan else (None, None)
    found = attend(setting.query, *setting.pools[0], setting.pages, setting.forest, tiles=tiles, num_splits=parts)
    nodes = len(setting.parents[0])
    both = torch.stack([found[:nodes], found[-nodes:]]).double()
    return float((both - expected).abs().max() / expected.abs().max() + 0.0 * found.float().sum())
