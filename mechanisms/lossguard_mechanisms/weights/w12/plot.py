"""The plot of a converted model: how weights spread over exponents, and how many escape in each tensor.

The same numbers give the same bytes: no date, and ids from a fixed salt.
"""

from __future__ import annotations

import importlib.util
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lossguard.atomic_write import replace_file
from lossguard_mechanisms.weights.w12.conversion_record import writing
from lossguard_mechanisms.weights.w12.info import ModelInfo

_STYLE: Any = {
    "svg.hashsalt": "lossguard",
    "svg.fonttype": "none",
    "font.size": 9,
    "axes.grid": True,
    "grid.alpha": 0.3,
}
_BIAS = 127


def write_plot(path: Path, info: ModelInfo, counts: Sequence[int]) -> str | None:
    """Write the plot as SVG. Returns why there is none, if matplotlib is missing. Raises StorageError LG1205."""
    if importlib.util.find_spec("matplotlib") is None:
        return "no plot: matplotlib is not installed (pip install 'lossguard[plots]')"
    text = render_plot(info, counts)
    with writing(path):
        replace_file(path, text.encode())
    return None


def render_plot(info: ModelInfo, counts: Sequence[int]) -> str:
    """The SVG as text; ``counts`` are weights by exponent, 256 of them."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    with mpl.rc_context():
        mpl.rcdefaults()  # the user's own style would change the bytes
        mpl.rcParams.update(_STYLE)
        figure = Figure(figsize=(9.0, 3.6))
        left, right = figure.subplots(1, 2)
        _draw_exponents(left, counts)
        _draw_escapes(right, info)
        figure.tight_layout()
        buffer = io.StringIO()
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return buffer.getvalue()


def _draw_exponents(axes: Any, counts: Sequence[int]) -> None:
    total = max(1, sum(counts))
    seen = [exponent for exponent, count in enumerate(counts) if count]
    axes.bar([exponent - _BIAS for exponent in seen], [counts[exponent] / total for exponent in seen])
    axes.set_yscale("log")
    axes.set_xlabel("exponent (zeros and subnormals at -127)")
    axes.set_ylabel("share of weights")
    axes.set_title(f"{total:,} weights")


def _draw_escapes(axes: Any, info: ModelInfo) -> None:
    chosen = [tensor for tensor in info.tensors if tensor.is_w12]
    for has_base_per_row, label in ((False, "one base"), (True, "base per row")):
        points = [
            (number, one.escape_fraction)
            for number, one in enumerate(chosen)
            if one.has_base_per_row is has_base_per_row
        ]
        axes.plot([point[0] for point in points], [point[1] for point in points], ".", label=label)
    axes.set_ylim(bottom=0)
    axes.set_xlabel("tensor")
    axes.set_ylabel("share of escapes")
    axes.set_title(f"{info.bits_per_w12_weight:.4f} bits per weight")
    axes.legend(loc="best", fontsize=7)
