"""Power curves as SVG, the same bytes for the same numbers. Needs the extra ``plots`` (matplotlib)."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

from lossguard.errors import UsageError
from lossguard.selftest.detection import GATE, Curve
from lossguard.selftest.rivals import RIVALS

_COLUMNS = 3
_WIDTH, _HEIGHT = 3.4, 2.5
_STYLE = {"svg.hashsalt": "lossguard", "svg.fonttype": "none", "font.size": 8, "axes.grid": True, "grid.alpha": 0.3}
_RULES = (GATE, *RIVALS)


def power_curves(curves: Sequence[Curve]) -> str:
    """One panel per system: the share of samples that each rule finds red, by tokens per arm. Raises LG0905."""
    pyplot = _pyplot()
    systems = list(dict.fromkeys(curve.system for curve in curves))
    num_rows = -(-len(systems) // _COLUMNS)
    with pyplot.rc_context(_STYLE):
        figure, axes = pyplot.subplots(
            num_rows,
            _COLUMNS,
            figsize=(_COLUMNS * _WIDTH, num_rows * _HEIGHT + 0.6),
            sharex=True,
            sharey=True,
            squeeze=False,
        )
        for axis in axes.flat[len(systems) :]:
            axis.set_visible(False)
        for system, axis in zip(systems, axes.flat, strict=False):
            _panel(axis, system, [curve for curve in curves if curve.system == system and curve.rule in _RULES])
        handles, labels = axes.flat[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="lower center", ncols=len(_RULES), frameon=False)
        figure.tight_layout(rect=(0, 0.6 / figure.get_figheight() * 0.6, 1, 1))
        text = io.StringIO()
        figure.savefig(text, format="svg", metadata={"Date": None, "Creator": None})
        pyplot.close(figure)
    return text.getvalue()


def _panel(axis: Any, system: str, curves: Sequence[Curve]) -> None:
    axis.set_title(system)
    axis.set_xscale("log")
    axis.set_ylim(-0.03, 1.03)
    axis.set_xlabel("tokens per arm")
    axis.set_ylabel("share red")
    for curve in curves:
        is_ours = curve.rule == GATE
        axis.plot(
            curve.tokens,
            [share.value for share in curve.shares],
            label=curve.rule,
            linewidth=2.2 if is_ours else 1.0,
            linestyle="-" if is_ours else "--",
            marker="o" if is_ours else None,
            markersize=3,
        )


def _pyplot() -> Any:
    try:
        import matplotlib as mpl
    except ModuleNotFoundError as error:
        raise UsageError(
            "matplotlib is not installed",
            why="curves are drawn with it; tables and JSON need nothing more",
            fix="pip install 'lossguard[plots]'",
            code="LG0905",
        ) from error
    mpl.use("svg")
    from matplotlib import pyplot

    return pyplot
