"""The gate's rule on replayed targets, on a CPU at a tiny shape: plain decoding beside a chain."""

from __future__ import annotations

import math

import pytest

from benchmarks.timing import replayed_gate


def test_a_verdict_with_the_noise_of_engines_that_live_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replayed_gate, "NUM_NOISE_PAIRS", 8)
    sides = ["--stock", "plain", "--candidate", "chain"]
    sizes = ["--shape", "tiny", "--requests", "2", "--tokens", "6", "--pairs", "4"]
    words = ["--device", "cpu", *sides, *sizes]
    found = replayed_gate.measured(replayed_gate.parsed(words))
    assert found["bounds"][0] < found["times_as_fast"] < found["bounds"][1]
    assert found["verdict"] != "PASS" or found["bounds"][0] > found["threshold"]
    assert found["kept_launches"] > 0
    assert found["device_name"] == found["device"] == "cpu"
    rms, threshold = found["noise"]["rms"], found["threshold"]
    assert rms > 0
    assert math.isclose(threshold, 1.01 + 2 * found["noise"]["upper_95"], abs_tol=1e-3)
