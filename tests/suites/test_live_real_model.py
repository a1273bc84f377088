"""The eight of CI on the real model: the only test in which everything is real."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossguard.listener import SilentListener
from lossguard.records import Verdict
from lossguard.selftest.base import SelftestOptions, render
from lossguard_suites.adversarial.live import run


@pytest.mark.slow
def test_every_planted_fault_is_seen_and_every_control_is_green(tmp_path: Path) -> None:
    part = run(SelftestOptions(folder=tmp_path), SilentListener())
    assert part.verdict is Verdict.PASS, render(part)
