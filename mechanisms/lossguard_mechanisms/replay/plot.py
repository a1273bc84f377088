"""The plot of a comparison: tau against the node budget, a panel per prompt set.

The same numbers give the same bytes: no date, and ids from a fixed salt.
"""

from __future__ import annotations

import importlib.util
import io
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lossguard.report.timing_plot import STYLE
from lossguard.run_folder import write_atomically
from lossguard_mechanisms.replay.comparison import Comparison, PolicyResult
from lossguard_mechanisms.replay.policies import ORACLE
from lossguard_mechanisms.replay.table import label
from lossguard_mechanisms.trees.names import BEST_FIRST, CHAIN, DDTREE, DYNAMIC, STATIC

_COLOURS = {
    CHAIN: "tab:gray",
    DDTREE: "tab:blue",
    BEST_FIRST: "tab:green",
    DYNAMIC: "tab:purple",
    STATIC: "tab:orange",
    ORACLE: "tab:red",
}
_MOST_COLUMNS = 3
_PANEL_INCHES = (3.4, 2.6)


def write_plot(path: Path, comparisons: Sequence[Comparison]) -> str | None:
    """Write the plot as SVG. Returns why there is none, if matplotlib is missing. Raises StorageError LG0607."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plot: matplotlib is not installed (pip install 'lossguard[plots]')"
    write_atomically(path, render_plot(comparisons))
    return None


def render_plot(comparisons: Sequence[Comparison]) -> str:
    """The SVG as text: a block of panels per recording."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    panels = [(comparison, name) for comparison in comparisons for name in comparison.sets]
    columns = min(_MOST_COLUMNS, len(panels))
    rows = math.ceil(len(panels) / columns)
    with mpl.rc_context():
        mpl.rcdefaults()  # the user's own style would change the bytes
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=(_PANEL_INCHES[0] * columns, _PANEL_INCHES[1] * rows + 0.3), layout="constrained")
        grid = list(figure.subplots(rows, columns, squeeze=False).flat)
        for axes in grid[len(panels) :]:
            axes.set_axis_off()
        for axes, (comparison, name) in zip(grid, panels, strict=False):
            _draw(axes, comparison, name)
        _add_legend(figure, grid)
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _add_legend(figure: Any, grid: Sequence[Any]) -> None:
    """One for all panels, above them."""
    labelled: dict[str, Any] = {}
    for axes in grid:
        handles, names = axes.get_legend_handles_labels()
        labelled |= dict(zip(names, handles, strict=True))
    if labelled:
        figure.legend(labelled.values(), labelled.keys(), loc="outside upper center", ncols=len(labelled), fontsize=7)


def _draw(axes: Any, comparison: Comparison, name: str) -> None:
    axes.set_title(f"{comparison.name}: {name}")
    results = [result for result in comparison.results if result.tau[name].value is not None]
    if not results:
        axes.text(0.5, 0.5, "no steps", ha="center", transform=axes.transAxes)
        return
    budgeted = [result for result in results if result.policy.name not in (CHAIN, ORACLE)]
    for policy in dict.fromkeys(result.policy.name for result in budgeted):
        _draw_budgets(axes, [result for result in budgeted if result.policy.name == policy], name)
    for result in results:
        if result not in budgeted:
            value, colour = result.tau[name].value, _COLOURS[result.policy.name]
            axes.axhline(value, color=colour, linestyle="--", linewidth=1, label=label(result))
    budgets = sorted({result.policy.num_nodes or 0 for result in budgeted})
    axes.set_xscale("log")
    axes.set_xticks(budgets, [str(budget) for budget in budgets])
    axes.set_xticks([], minor=True)
    axes.set_ylim(1.0, 0.1 + 1.02 * max(result.tau[name].high or result.tau[name].value or 1.0 for result in results))
    axes.set_xlabel("drafted tokens verified per step")
    axes.set_ylabel("tokens per step")


def _draw_budgets(axes: Any, results: Sequence[PolicyResult], name: str) -> None:
    estimates = [result.tau[name] for result in results]
    axes.errorbar(
        [result.policy.num_nodes for result in results],
        [estimate.value for estimate in estimates],
        yerr=[estimate.half_width or 0.0 for estimate in estimates],
        color=_COLOURS[results[0].policy.name],
        marker="o",
        markersize=3,
        capsize=2,
        label=results[0].policy.name,
    )
