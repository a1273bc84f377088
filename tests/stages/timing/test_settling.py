"""Arms that stay alive: all of them are started and have taken turns before the first run, and none is a stranger."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossguard.devices.names import available_cores
from lossguard.stages.timing import runner
from lossguard.stages.timing.design import RunPlan
from lossguard.stages.timing.runner import ArmPool
from tests.stages.timing.campaigns import ToyCampaign

pytestmark = pytest.mark.skipif(len(available_cores()) < 2, reason="two devices need two cores")


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, frozenset[int]]]:
    """Every warm-up block as it begins: its name and the processes that serve it."""
    found: list[tuple[str, frozenset[int]]] = []
    warm_up = runner._warm_up

    def noted(settings: Any, arms: Any, run: RunPlan, block: str = "warm-up") -> None:
        found.append((block, frozenset(arm.pid for arm in arms.values())))
        warm_up(settings, arms, run, block)

    monkeypatch.setattr(runner, "_warm_up", noted)
    return found


def test_every_kept_arm_serves_twice_in_turns_before_the_first_run(
    tmp_path: Path, blocks: list[tuple[str, frozenset[int]]]
) -> None:
    assert ToyCampaign(tmp_path / "c", pairs=1).run().problems == ()
    assert [name for name, _ in blocks] == ["settle-0", "settle-0", "settle-1", "settle-1", "warm-up", "warm-up"]
    first, second = blocks[0][1], blocks[1][1]
    assert first.isdisjoint(second)
    assert [pids for _, pids in blocks] == [first, second] * 3


def test_on_one_device_the_two_arms_take_turns(tmp_path: Path, blocks: list[tuple[str, frozenset[int]]]) -> None:
    assert ToyCampaign(tmp_path / "c", pairs=1, devices=("cpu:0",)).run().problems == ()
    pids = [pids for name, pids in blocks if name.startswith("settle")]
    assert pids == [pids[0], pids[1]] * 2
    assert pids[0] != pids[1]


def test_arms_that_are_launched_anew_have_nothing_to_settle(
    tmp_path: Path, blocks: list[tuple[str, frozenset[int]]]
) -> None:
    assert ToyCampaign(tmp_path / "c", pairs=1, relaunch="process").run().problems == ()
    assert [name for name, _ in blocks] == ["warm-up", "warm-up"]


def test_arms_that_wait_on_a_device_are_no_strangers_there(tmp_path: Path) -> None:
    pool = ArmPool(ToyCampaign(tmp_path / "c").settings, lambda _device, _pid: None)
    kept: dict[tuple[int, int], Any] = {
        (arm, device): SimpleNamespace(pid=10 * arm + device) for arm in (0, 1) for device in (0, 1)
    }
    pool._kept = kept
    both = RunPlan(pair=0, run=0, devices=(0, 1), turns=((0, 1),))
    assert pool.groups(both, {0: kept[(0, 0)], 1: kept[(1, 1)]}) == {"cpu:0": {0, 10}, "cpu:1": {1, 11}}
    assert pool.groups(both, {0: kept[(0, 0)]}) == {"cpu:0": {0, 10}}
