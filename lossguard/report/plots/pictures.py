"""The five pictures of a claim."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from lossguard.report.plots.canvas import CANDIDATE, LIMIT, STOCK

Json = Mapping[str, Any]
ARMS = (("stock", STOCK), ("candidate", CANDIDATE))
STATUS = {"n": ("not audited", "tab:orange"), "e": ("explained", "tab:green"), "u": ("not served by stock", "tab:red")}
"""Drawn in this order: what decides lies on top."""
COLUMNS, ROWS_A_DECADE = 140, 20
"""Cells of the picture of events: points in one cell are drawn as one."""


def draw_gaps(axes: Any, gaps: Json) -> None:
    """Gap distribution of both arms, with delta and the event threshold."""
    edges = gaps["edges_nats"]
    for name, colour in ARMS:
        shares = [100 * count / max(gaps[name]["num_tokens"], 1) for count in gaps[name]["counts"]]
        axes.stairs(shares, edges, color=colour, label=name, fill=name == "stock", alpha=0.5 if name == "stock" else 1)
    low, middle, high = gaps["delta_nats"]
    axes.axvspan(max(low, edges[0]), max(high, edges[0]), color="tab:green", alpha=0.12, label="delta, q to maximum")
    axes.axvline(max(middle, edges[0]), color="tab:green", linestyle=":", label="delta, median")
    axes.axvline(gaps["event_nats"], color=LIMIT, linestyle="--", label="event threshold")
    axes.set_xscale("log")
    axes.set_yscale("symlog", linthresh=0.01)
    _plain_numbers(axes.xaxis, axes.yaxis)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("gap of the served token, nats (tokens that are the best one are left out)")
    axes.set_ylabel("tokens, %")
    axes.legend(loc="best", fontsize=7)


def draw_positions(axes: Any, rows: Sequence[Json]) -> None:
    """Mismatch rate per bucket of positions, with 95 % intervals."""
    for shift, (name, colour) in zip((-0.12, 0.12), ARMS, strict=True):
        known = [(at + shift, row[name]) for at, row in enumerate(rows) if row[name]["rate"] is not None]
        values = [100 * rate["rate"] for _, rate in known]
        below = [100 * (rate["rate"] - rate["lower_95"]) for _, rate in known]
        above = [100 * (rate["upper_95"] - rate["rate"]) for _, rate in known]
        places = [at for at, _ in known]
        axes.errorbar(places, values, yerr=[below, above], fmt="o", color=colour, capsize=3, markersize=4, label=name)
    axes.set_xticks(range(len(rows)), [position_words(row) for row in rows])
    axes.set_ylim(bottom=0)
    axes.set_xlabel("position in the reply")
    axes.set_ylabel("mismatches, % of tokens (95 %)")
    axes.legend(loc="best", fontsize=7)


def draw_events(axes: Any, events: Json) -> None:
    """Events over the position in the reply: size of the gap, and what the audit says."""
    from matplotlib.ticker import LogLocator

    furthest = max([position for arm in events.values() for position in arm["position"]], default=1)
    for arm, marker in (("stock", "x"), ("candidate", "o")):
        for letter, (words, colour) in STATUS.items():
            cells = _cells(events[arm], letter, furthest)
            if cells:
                label = f"{arm}: {words}"
                places, gaps = zip(*cells, strict=True)
                axes.plot(places, gaps, marker, color=colour, markersize=3.5, alpha=0.7, label=label)
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))  # gaps may all lie within one decade
    _plain_numbers(axes.yaxis)
    axes.set_xlim(-0.02 * furthest, 1.02 * furthest)
    axes.set_xlabel("position in the reply")
    axes.set_ylabel("gap, nats")
    if axes.get_legend_handles_labels()[0]:
        axes.legend(loc="best", fontsize=7)


def _plain_numbers(*sides: Any) -> None:
    """``0.01``, where matplotlib would write a power of ten as a formula."""
    from matplotlib.ticker import FuncFormatter, NullFormatter

    for side in sides:
        side.set_major_formatter(FuncFormatter(lambda value, _at: f"{value:g}"))
        side.set_minor_formatter(NullFormatter())


def _cells(arm: Json, letter: str, furthest: int) -> list[tuple[float, float]]:
    """Places of the picture that hold a point; ten thousand points would hide each other, and fill the file."""
    width = max(furthest / COLUMNS, 1.0)
    found = {
        (round(position / width) * width, round(math.log10(max(gap, 1e-3)) * ROWS_A_DECADE))
        for status, position, gap in zip(arm["status"], arm["position"], arm["gap_nats"], strict=True)
        if status == letter
    }
    return [(place, 10 ** (row / ROWS_A_DECADE)) for place, row in sorted(found)]


def draw_power(axes: Any, power: Json) -> None:
    """What the rate check says of a candidate with a given true excess."""
    axes.plot(power["excess_points"], [100 * value for value in power["fail_fraction"]], color=LIMIT, label="FAIL")
    passing = [100 * value for value in power["pass_fraction"]]
    axes.plot(power["excess_points"], passing, color="tab:green", label="PASS")
    axes.axvline(power["margin_points"], color="black", linestyle=":", label="margin")
    if power["detectable_excess_points"] < 100:
        axes.axvline(power["detectable_excess_points"], color=LIMIT, linestyle="--", label="FAIL 90 times in 100")
    axes.set_xlabel("true excess of the candidate's mismatch rate, points")
    axes.set_ylabel("rate check, times in 100")
    axes.legend(loc="best", fontsize=7)


def position_words(row: Json) -> str:
    """``17-64``, ``0``, ``over 2,048``."""
    first, last = row["first"], row["last"]
    if last is None:
        return f"over {first - 1:,}"
    return f"{first:,}" if first == last else f"{first:,}-{last:,}"
