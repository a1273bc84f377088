"""Pictures of a claim with the tables that say the same in numbers."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from lossguard.report.plots import pictures
from lossguard.report.plots.canvas import Draw, draw_svg, is_available
from lossguard.report.timing_plot import draw_pairs

Json = Mapping[str, Any]
ROWS_SHOWN = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """``svg`` is empty where no picture can be drawn; the table is always there."""

    title: str
    caption: str
    svg: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def figures_of(claim: Json, prefix: str) -> tuple[Figure, ...]:
    """Every picture for which the claim carries numbers."""
    figures = dict(claim.get("figures", {}))
    made = [make(figures[key], f"{prefix}-{key}") for key, make in MAKERS.items() if key in figures]
    data = claim["checks"][0]["evidence"].get("plot_data") if claim.get("kind") == "speed" else None
    return (*made, *([_pairs(data, f"{prefix}-pairs")] if data else ()))


def _svg(name: str, alternative: str, draw: Draw) -> str:
    return draw_svg(name, alternative, draw) if is_available() else ""


def _gaps(gaps: Json, name: str) -> Figure:
    title = "How far served tokens lie under the best one"
    arms = [gaps["candidate"], gaps["stock"]]
    parts = (
        ("the best token itself", "num_best"),
        ("nearer than the axis", "num_below"),
        ("further than the axis", "num_above"),
        ("not scored", "num_not_scored"),
    )
    rows = [(words, *(f"{arm[key]:,}" for arm in arms)) for words, key in parts]
    edges = gaps["edges_nats"]
    for at, (low, high) in enumerate(pairwise(edges)):
        counts = [arm["counts"][at] for arm in arms]
        if any(counts):
            rows.append((f"{low:.3g} to {high:.3g} nats", *(f"{count:,}" for count in counts)))
    return Figure(
        title=title,
        caption="A gap under delta is a near-tie; one over the event threshold is looked at one by one.",
        svg=_svg(name, title, lambda axes: pictures.draw_gaps(axes, gaps)),
        header=("gap", "candidate", "stock"),
        rows=tuple(rows),
    )


def _positions(rows: Sequence[Json], name: str) -> Figure:
    title = "Mismatch rate by position in the reply"
    cells = [
        (pictures.position_words(row), *(text for arm in ("candidate", "stock") for text in _rate(row[arm])))
        for row in rows
    ]
    return Figure(
        title=title,
        caption="Intervals are two-sided 95 %, exact, on counts over their design effect.",
        svg=_svg(name, title, lambda axes: pictures.draw_positions(axes, rows)),
        header=("positions", "candidate", "95 %", "stock", "95 %"),
        rows=tuple(cells),
    )


def _rate(rate: Json) -> tuple[str, str]:
    if rate["rate"] is None:
        return "no tokens", ""
    counts = f"{rate['num_mismatches']:,} of {rate['num_tokens']:,} ({100 * rate['rate']:.2f} %)"
    return counts, f"{100 * rate['lower_95']:.2f} to {100 * rate['upper_95']:.2f} %"


def _events(events: Json, name: str) -> Figure:
    title = "Events, and what the audit says of them"
    rows = [
        (arm, f"{request + 1:,}", f"{position:,}", f"{gap:.2f}", pictures.STATUS[status][0])
        for arm in ("candidate", "stock")
        for request, position, gap, status in zip(
            *(events[arm][key] for key in ("request_index", "position", "gap_nats", "status")), strict=True
        )
    ]
    numbers = "; ".join(f"{arm}: {events[arm]['num_events']:,} events" for arm in ("candidate", "stock"))
    more = f"; the table has the first {ROWS_SHOWN} of {len(rows):,}" if len(rows) > ROWS_SHOWN else ""
    return Figure(
        title=title,
        caption=f"{numbers}. An event is explained if stock itself serves that token there{more}.",
        svg=_svg(name, title, lambda axes: pictures.draw_events(axes, events)) if rows else "",
        header=("system", "request, of the run", "position", "gap, nats", "audit"),
        rows=tuple(rows[:ROWS_SHOWN]),
    )


def _power(power: Json, name: str) -> Figure:
    title = "What this run could have seen"
    columns = [power["excess_points"], power["fail_fraction"], power["pass_fraction"]]
    rows = list(zip(*columns, strict=True))[::5]
    return Figure(
        title=title,
        caption="Verdicts of the rate check by the candidate's true excess: stock's calibration, this run's size.",
        svg=_svg(name, title, lambda axes: pictures.draw_power(axes, power)),
        header=("true excess, points", "FAIL, times in 100", "PASS, times in 100"),
        rows=tuple((f"{at:.2f}", f"{100 * fail:.1f}", f"{100 * passing:.1f}") for at, fail, passing in rows),
    )


def _pairs(data: Json, name: str) -> Figure:
    from lossguard.timing.plot_data import PlotData

    title = "Gain of every swap pair"
    values = {key: _numbers(value) for key, value in data.items()}
    plot = PlotData(**values)
    rows = zip(plot.pair_gains, plot.pair_lowers, plot.pair_uppers, strict=True)
    return Figure(
        title=title,
        caption="The grey band is stock against stock; the dashed line is the gain that had to be shown.",
        svg=_svg(name, title, lambda axes: draw_pairs(axes, plot)),
        header=("pair", "gain", "95 %"),
        rows=tuple(
            (str(at), f"{100 * gain:+.2f} %", f"{100 * low:+.2f} to {100 * high:+.2f} %")
            for at, (gain, low, high) in enumerate(rows, 1)
        ),
    )


def _numbers(value: Any) -> Any:
    """JSON's null stands for a bound that does not exist."""
    if isinstance(value, list):
        return tuple(math.nan if item is None else float(item) for item in value)
    return math.nan if value is None else float(value)


MAKERS: dict[str, Callable[[Any, str], Figure]] = {
    "gaps": _gaps,
    "positions": _positions,
    "events": _events,
    "power": _power,
}
