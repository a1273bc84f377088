"""The trend as a table and as a picture: mismatch rates and gains of every candidate over its runs."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError
from lossguard.history.database import ClaimRow
from lossguard.report.plots.canvas import WITHOUT, is_available, stand_alone_svg
from lossguard.report.terminal import render_table
from lossguard.report.verdict_text import visible
from lossguard.run_folder import write_atomically

COLOURS = ("tab:blue", "tab:orange", "tab:green", "tab:purple", "tab:brown", "tab:cyan")
VERDICT_MARKERS = {"PASS": "o", "FAIL": "X", "INCONCLUSIVE": "s"}
NUM_CANDIDATES = len(COLOURS)


def render_history(rows: Sequence[ClaimRow]) -> str:
    """A row per claim, oldest first."""
    if not rows:
        return "no finished run was found"
    head = ["started", "run", "claim", "verdict", "candidate", "stock", "gain"]
    return render_table([head, *(_cells(row) for row in rows)])


def _cells(row: ClaimRow) -> list[str]:
    gain = _percent(row.gain, "+.2f")
    if row.gain_lower_bound is not None:
        gain += f" (over {_percent(row.gain_lower_bound, '+.2f')})"
    rates = [_percent(row.candidate_rate, ".2f"), _percent(row.stock_rate, ".2f")]
    return [row.started, visible(row.run), visible(row.claim, 60), row.verdict, *rates, gain]


def _percent(value: float | None, form: str) -> str:
    return "" if value is None else f"{100 * value:{form}} %"


def write_trend(path: Path, rows: Sequence[ClaimRow]) -> Path:
    """The picture as an SVG file; the same rows give the same bytes.

    Raises UsageError LG1803 without matplotlib, StorageError LG0607.
    """
    if not is_available():
        raise UsageError(
            f"{path} was not written: {WITHOUT}",
            why="a file that is not there must not be taken for one without news",
            fix="pip install 'lossguard[plots]', or leave --plot out",
            code="LG1803",
        )
    return write_atomically(path, stand_alone_svg(lambda figure: _draw(figure, rows)))


def _draw(figure: Any, rows: Sequence[ClaimRow]) -> None:
    runs = list(dict.fromkeys((row.started, row.run) for row in rows))
    at = {run: place for place, run in enumerate(runs)}
    names = list(dict.fromkeys(row.candidate for row in rows))[:NUM_CANDIDATES]
    top, bottom = figure.subplots(2, 1, sharex=True)
    for name, colour in zip(names, COLOURS, strict=False):
        own = [row for row in rows if row.candidate == name]
        _line(top, [(at[row.started, row.run], row.candidate_rate, row) for row in own], visible(name, 30), colour)
        _line(bottom, [(at[row.started, row.run], row.gain, row) for row in own], visible(name, 30), colour)
    stock = {(row.started, row.run): row.stock_rate for row in rows if row.stock_rate is not None}
    top.plot([at[run] for run in stock], [100 * rate for rate in stock.values()], color="tab:gray", label="stock")
    top.set_ylabel("mismatches, % of tokens")
    top.set_ylim(bottom=0)
    bottom.axhline(0, color="black", linewidth=0.8)
    bottom.set_ylabel("gain, %")
    bottom.set_xticks(range(len(runs)), [run for _, run in runs], rotation=45, ha="right")
    for axes in (top, bottom):
        if axes.get_legend_handles_labels()[0]:
            axes.legend(loc="best", fontsize=7)
    if len(dict.fromkeys(row.candidate for row in rows)) > NUM_CANDIDATES:
        top.set_title(f"the first {NUM_CANDIDATES} candidates; --candidate NAME shows another")


def _line(axes: Any, points: Sequence[tuple[int, float | None, ClaimRow]], name: str, colour: str) -> None:
    """One candidate: a line through its runs, marked by verdict, with bounds where it has any."""
    known = [(place, 100 * value, row) for place, value, row in points if value is not None]
    if not known:
        return
    axes.plot([place for place, _, _ in known], [value for _, value, _ in known], color=colour, label=name)
    for verdict, marker in VERDICT_MARKERS.items():
        chosen = [(place, value) for place, value, row in known if row.verdict == verdict]
        axes.plot([place for place, _ in chosen], [value for _, value in chosen], marker, color=colour)
    for place, value, row in known:
        if row.kind == "speed" and row.gain_lower_bound is not None:
            high = value if row.gain_upper_bound is None else 100 * row.gain_upper_bound
            axes.plot([place, place], [100 * row.gain_lower_bound, high], color=colour, alpha=0.5)
