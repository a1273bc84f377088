"""Campaigns end to end: two processes on two pinned cores, in pairs, interrupted and resumed."""

from __future__ import annotations

import errno
import itertools
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossguard.devices.leases import LeaseBook
from lossguard.devices.names import available_cores, parse_devices
from lossguard.devices.telemetry import TelemetryLimits
from lossguard.records import Verdict
from lossguard.stages.timing import runner
from lossguard.stages.timing.campaign import Hooks
from lossguard.stages.timing.clocks import Clocks
from lossguard.stages.timing.run_log import read_run
from tests.stages.timing.campaigns import ToyCampaign, resumed

pytestmark = pytest.mark.skipif(len(available_cores()) < 2, reason="two devices need two cores")


def test_two_pairs_on_two_pinned_cores(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", candidate={"token_seconds": 0.001}, pairs=2, relaunch="process")
    measured = campaign.run()
    assert measured.problems == ()
    assert [pair.device.tolist() for pair in measured.pairs] == [[[0, 1], [1, 0]], [[1, 0], [0, 1]]]
    assert all(pair.num_diverging == 0 for pair in measured.pairs)
    gains = [float(np.log(pair.seconds[:, 0] / pair.seconds[:, 1]).mean()) for pair in measured.pairs]
    assert all(0.1 < gain < 1.5 for gain in gains), gains
    record = read_run(tmp_path / "c" / "runs" / "pair-000-run-1.jsonl")
    assert record is not None
    assert record.head["devices"] == {"stock": "cpu:1", "candidate": "cpu:0"}
    assert record.end is not None
    assert record.end["arms"]["stock"]["cores"] == [1]
    assert {record.end["arms"][arm]["pid"] for arm in ("stock", "candidate")}.isdisjoint(
        {hello["pid"] for hello in _end(tmp_path, "pair-000-run-0")["arms"].values()}
    )


def _end(tmp_path: Path, name: str) -> Any:
    record = read_run(tmp_path / "c" / "runs" / f"{name}.jsonl")
    assert record is not None
    assert record.end is not None
    return record.end


def test_no_prompt_is_ever_served_twice_and_both_arms_get_the_same(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=2)
    campaign.run()
    records = [read_run(tmp_path / "c" / "runs" / name) for name in campaign.run_files]
    hashes = [[{reply.ids_sha256 for reply in record.arm(arm)} for arm in (0, 1)] for record in records if record]
    assert all(stock == candidate for stock, candidate in hashes)
    nonces, runs = campaign.settings.nonces, [*itertools.product(range(2), range(2))]
    from lossguard.stages.timing.design import RunPlan

    prompts = [
        request.prompt_ids
        for pair, run in runs
        for request in nonces.for_run(
            campaign.settings.requests, RunPlan(pair=pair, run=run, devices=(0, 1), turns=()), block="timed"
        )
    ]
    assert len(set(prompts)) == len(prompts) == 24


def test_one_device_takes_turns_in_abba_blocks(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=2, devices=("cpu:0",), candidate={"token_seconds": 0.001})
    measured = campaign.run()
    assert measured.problems == ()
    turns = [_end_of(campaign, name)["turns"] for name in ("pair-000-run-0", "pair-000-run-1")]
    assert turns == [[["stock"], ["candidate"]], [["candidate"], ["stock"]]]
    assert all(np.log(pair.seconds[:, 0] / pair.seconds[:, 1]).mean() > 0.1 for pair in measured.pairs)


def _end_of(campaign: ToyCampaign, name: str) -> Any:
    record = read_run(campaign.folder / "runs" / f"{name}.jsonl")
    assert record is not None
    return record.head


def test_a_server_that_dies_in_run_3_leaves_what_was_measured_and_resumes_there(tmp_path: Path) -> None:
    launches = tmp_path / "launches"
    deadly = {"launches": str(launches), "die_in_launch": 3}
    campaign = ToyCampaign(tmp_path / "c", candidate=deadly, pairs=4, relaunch="process")
    measured = campaign.run()
    assert len(measured.pairs) == 1
    assert "LG1004" in measured.problems[0]
    assert "exit code 9" in measured.problems[0]
    kept = (tmp_path / "c" / "runs" / "pair-000-run-1.jsonl").read_text()
    again = resumed(campaign, candidate={**deadly, "die_in_launch": 0})
    measured = again.run()
    assert measured.problems == ()
    assert len(measured.pairs) == 4
    assert (tmp_path / "c" / "runs" / "pair-000-run-1.jsonl").read_text() == kept
    assert "pair-001-run-0.jsonl.attempt-1" in again.run_files
    assert len(launches.read_text()) == 3 + 6


def test_ctrl_c_ends_the_arms_and_the_next_call_resumes(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=2, relaunch="process")
    counted = itertools.count()

    def interrupt(_count: int) -> None:
        if next(counted) == 8:
            raise KeyboardInterrupt

    pids: list[int] = []
    book = LeaseBook(tmp_path / "leases")
    with pytest.raises(KeyboardInterrupt):
        campaign.run(Hooks(note=pids.append, progress=interrupt), book)  # type: ignore[arg-type]
    assert book.leases() == ()
    assert campaign.run_files == ["pair-000-run-0.jsonl", "pair-000-run-1.jsonl"]
    measured = campaign.run()
    assert measured.problems == ()
    assert len(measured.pairs) == 2
    assert "pair-000-run-1.jsonl.attempt-1" in campaign.run_files
    assert "pair-000-run-0.jsonl.attempt-1" not in campaign.run_files


def test_a_full_disk_ends_the_campaign_and_keeps_what_was_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=2)
    real_sync, left = os.fsync, itertools.count()

    def full(descriptor: int) -> None:
        if next(left) > 40:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        real_sync(descriptor)

    monkeypatch.setattr("lossguard.run_folder.os.fsync", full)
    measured = campaign.run()
    monkeypatch.undo()
    assert "LG0607" in measured.problems[0]
    assert len(measured.pairs) == 1
    measured = campaign.run()
    assert measured.problems == ()
    assert len(measured.pairs) == 2


def test_a_clock_that_jumps_makes_the_run_unusable_and_it_is_measured_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import time

    campaign = ToyCampaign(tmp_path / "c", pairs=1)
    skew = itertools.count(step=1_000_000_000)
    monkeypatch.setattr(
        "lossguard.stages.timing.clocks.REAL_CLOCKS", Clocks(wall_ns=lambda: time.time_ns() + next(skew))
    )
    measured = campaign.run()
    assert measured.pairs == ()
    assert "clock jump" in measured.problems[0]
    monkeypatch.undo()
    assert len(campaign.run().pairs) == 1
    assert "pair-000-run-0.jsonl.attempt-1" in campaign.run_files


def test_a_shared_core_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    limits = TelemetryLimits(foreign_load=-1.0, stolen=1.0)  # any load at all
    campaign = ToyCampaign(tmp_path / "c", pairs=1, limits=limits, stock={"token_seconds": 0.02})
    measured = campaign.run()
    assert measured.pairs == ()
    assert "was shared" in measured.problems[0]
    assert campaign.judged().check.verdict is Verdict.INCONCLUSIVE


def test_a_device_that_is_lost_ends_the_campaign(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=2, relaunch="process")
    real = runner.host_cores
    calls = itertools.count()

    def lost(devices: Sequence[Any]) -> Any:
        return ((999,), (999,)) if next(calls) >= 4 else real(devices)  # a core that is gone

    monkeypatch.setattr(runner, "host_cores", lost)
    measured = campaign.run()
    assert len(measured.pairs) == 1
    assert "LG1004" in measured.problems[0]
    monkeypatch.undo()
    assert len(campaign.run().pairs) == 2


def test_a_device_in_other_hands_is_waited_for_and_then_reported(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=1)
    book = LeaseBook(tmp_path / "leases")
    with book.hold(parse_devices(["cpu:1"]), "another test", 0.0, lambda _text: None):
        measured = campaign.run(wait_seconds=0.3)
    assert measured.pairs == ()
    assert "LG1002" in measured.problems[0]
    assert "another test" in measured.problems[0]
    assert any("waiting for cpu:1" in note for note in campaign.notes)


def test_an_arm_that_hangs_is_ended(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=1, candidate={"hang": True}, request_seconds=2.0)
    measured = campaign.run()
    assert "did not answer in time" in measured.problems[0]


def test_an_engine_without_a_proved_reset_is_refused(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=1, candidate={"can_reset": False})
    assert "LG1005" in campaign.run().problems[0]


def test_a_reset_that_leaves_something_behind_is_found(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=2, candidate={"forgets": False})
    measured = campaign.run()
    assert "another state than at first" in measured.problems[0]


def test_an_arrival_trace_counts_from_when_a_request_was_due(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=1, arrivals_per_second=200.0)
    (pair,) = campaign.run().pairs
    assert (pair.seconds[:, :, -1] > 1.5 * pair.seconds[:, :, 0]).all()  # the queue grows


@pytest.mark.parametrize("metric", ["ttft", "inter_token"])
def test_other_metrics_come_from_the_same_runs(tmp_path: Path, metric: str) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=1, metric=metric)
    (pair,) = campaign.run().pairs
    assert 0.001 < float(np.median(pair.seconds)) < 0.05


def test_a_planned_stop_ends_the_campaign(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=3)
    hooks = Hooks(note=lambda _text: None, progress=lambda _count: None, stop=lambda pairs: f"after {len(pairs)}")
    measured = campaign.run(hooks)
    assert measured.stopped == "after 1"
    assert len(measured.pairs) == 1


def test_lines_are_on_disk_as_they_come(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", pairs=1)
    seen: list[int] = []

    def look(_count: int) -> None:
        path = campaign.folder / "runs" / "pair-000-run-0.jsonl"
        seen.append(sum(json.loads(line)["kind"] == "reply" for line in path.read_text().splitlines()))

    campaign.run(Hooks(note=lambda _text: None, progress=look))
    assert seen[:3] == [2, 4, 6]
