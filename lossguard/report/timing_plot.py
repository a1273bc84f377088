"""The plot of a speed claim: gain of every swap pair with its interval, the A/A band and the promotion line.

The same data give the same bytes: no date, and ids from a fixed salt.
"""

from __future__ import annotations

import importlib.util
import io
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossguard.run_folder import write_atomically

if TYPE_CHECKING:
    from lossguard.timing.plot_data import PlotData

SALT = "lossguard"
STYLE: Any = {"svg.hashsalt": SALT, "svg.fonttype": "none", "font.size": 9, "axes.grid": True, "grid.alpha": 0.3}


def write_plot(path: Path, data: PlotData, *, title: str) -> str | None:
    """Write the plot as SVG. Returns why there is none, if matplotlib is missing."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plot: matplotlib is not installed (pip install 'lossguard[plots]')"
    write_atomically(path, render_plot(data, title=title))
    return None


def render_plot(data: PlotData, *, title: str) -> str:
    """The SVG as text."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # the user's own style would change the bytes
        mpl.rcParams.update(STYLE)
        figure = Figure(figsize=(7.0, 3.6))
        axes = figure.add_subplot()
        draw_pairs(axes, data)
        axes.set_title(title)
        figure.tight_layout()
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def draw_pairs(axes: Any, data: PlotData) -> None:
    """Pairs with their intervals, the mean so far, the A/A band, the bounds and the promotion line."""
    pairs = list(range(1, len(data.pair_gains) + 1))
    gains = [100 * value for value in data.pair_gains]
    below = [100 * (value - low) for value, low in zip(data.pair_gains, data.pair_lowers, strict=True)]
    above = [100 * (high - value) for value, high in zip(data.pair_gains, data.pair_uppers, strict=True)]
    band = 100 * data.noise_band
    axes.axhspan(-band, band, color="tab:gray", alpha=0.3, label="stock against stock (rms)")
    axes.axhline(100 * data.threshold, color="tab:red", linestyle="--", label="promotion line")
    axes.errorbar(pairs, gains, yerr=[below, above], fmt="o", color="tab:blue", label="swap pairs (95 %)")
    axes.plot(pairs, [100 * value for value in data.running_gains], color="tab:blue", alpha=0.5, label="mean so far")
    if math.isfinite(data.gain_lower) and math.isfinite(data.gain_upper):
        axes.axhspan(100 * data.gain_lower, 100 * data.gain_upper, color="tab:green", alpha=0.2, label="gain (bounds)")
    axes.set_xlabel("swap pair")
    axes.set_ylabel("gain of the candidate, %")
    axes.legend(loc="best", fontsize=7)
