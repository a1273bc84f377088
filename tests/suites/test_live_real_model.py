"""The eight of CI on the real model, where everything is real: a test for each round, so that two cores are used."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossguard.listener import SilentListener
from lossguard.records import Verdict
from lossguard.selftest.base import SelftestOptions, render
from lossguard_suites.adversarial import live


@pytest.mark.slow
@pytest.mark.parametrize("current", live.QUICK, ids=lambda current: current.name)
def test_every_planted_fault_is_seen_and_every_control_is_green(
    current: live.Round, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "QUICK", (current,))
    part = live.run(SelftestOptions(folder=tmp_path), SilentListener())
    assert part.verdict is Verdict.PASS, render(part)
