"""A long stage says where it is, and not at every request."""

from __future__ import annotations

import pytest

from lossguard.pytest_plugin.progress import StdoutListener


def test_a_line_at_most_every_few_seconds(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("lossguard.pytest_plugin.progress.time.monotonic", lambda: now[0])
    with StdoutListener().stage("serve stock", 1_000, "requests") as advance:
        for _ in range(10):
            now[0] += 3
            advance(100)
    assert capsys.readouterr().out.splitlines() == [
        "lossguard: serve stock: 1,000 requests",
        "lossguard: serve stock: 400 of 1,000 requests",
        "lossguard: serve stock: 800 of 1,000 requests",
        "lossguard: serve stock: 1,000 requests in 30 s",
    ]
