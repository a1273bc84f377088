"""The plot of a speed claim."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest

from lossguard.report.timing_plot import render_plot, write_plot
from lossguard.timing.plot_data import PlotData

DATA = PlotData(
    pair_gains=(0.02, 0.031, 0.024),
    pair_lowers=(0.01, 0.02, 0.015),
    pair_uppers=(0.03, 0.04, 0.033),
    running_gains=(0.02, 0.0255, 0.025),
    gain=0.025,
    gain_lower=0.018,
    gain_upper=0.032,
    threshold=0.014,
    noise_gains=(0.001, -0.002),
    noise_band=0.0016,
)


def test_the_same_data_give_the_same_bytes() -> None:
    pytest.importorskip("matplotlib")
    first, second = render_plot(DATA, title="a against b"), render_plot(DATA, title="a against b")
    assert first == second
    root = ElementTree.fromstring(first)
    text = "".join(root.itertext())
    for words in ("a against b", "promotion line", "stock against stock", "swap pair"):
        assert words in text


def test_without_matplotlib_the_reason_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setattr("lossguard.report.timing_plot.importlib.util.find_spec", lambda _name: None)
    reason = write_plot(tmp_path / "p.svg", DATA, title="x")
    assert reason is not None
    assert "lossguard[plots]" in reason
    assert not (tmp_path / "p.svg").exists()


def test_a_gain_without_bounds_is_drawn(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    from dataclasses import replace

    path = tmp_path / "p.svg"
    assert write_plot(path, replace(DATA, gain_lower=-1.0, gain_upper=float("inf")), title="x") is None
    assert path.stat().st_size > 1_000
