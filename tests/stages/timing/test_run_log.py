"""Files of runs: complete, cut short, damaged, set aside."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossguard.errors import IntegrityError
from lossguard.stages.timing.clocks import Clocks, ClockWatch
from lossguard.stages.timing.run_log import Reply, RunWriter, read_run


def reply(arm: int, index: int) -> Reply:
    return Reply(
        arm=arm,
        index=index,
        request_id=f"p{index}",
        sent_ns=1_000,
        received_ns=501_000,
        num_tokens=3,
        ids_sha256="0" * 64,
        finish_reason="length",
    )


def write(path: Path, *, is_ended: bool) -> None:
    writer = RunWriter(path, {"pair": 0, "run": 1})
    writer.replies([reply(1, 0), reply(0, 0)])
    writer.sample({"device": "cpu:0", "at_ns": 1})
    if is_ended:
        writer.end({"problems": ["a reason"]})


def test_a_run_comes_back_as_it_was_written(tmp_path: Path) -> None:
    write(tmp_path / "runs" / "a.jsonl", is_ended=True)
    record = read_run(tmp_path / "runs" / "a.jsonl")
    assert record is not None
    assert record.is_complete
    assert record.problems == ("a reason",)
    assert record.head["run"] == 1
    assert record.arm(0) == [reply(0, 0)]
    assert record.arm(0)[0].seconds == pytest.approx(0.0005)
    assert len(record.samples) == 1


def test_a_run_without_its_end_is_incomplete(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    write(path, is_ended=False)
    path.write_bytes(path.read_bytes() + b'{"kind": "end", "prob')
    record = read_run(path)
    assert record is not None
    assert not record.is_complete
    assert len(record.replies) == 2


def test_there_may_be_no_file(tmp_path: Path) -> None:
    assert read_run(tmp_path / "none.jsonl") is None


@pytest.mark.parametrize("line", ["no json", "[]", '{"kind": "other"}', '{"kind": "reply", "arm": 0}', "{}"])
def test_damage_is_refused(tmp_path: Path, line: str) -> None:
    path = tmp_path / "a.jsonl"
    write(path, is_ended=False)
    path.write_text(path.read_text() + line + "\n")
    with pytest.raises(IntegrityError, match="LG0606"):
        read_run(path)


def test_earlier_attempts_are_kept_under_other_names(tmp_path: Path) -> None:
    for _ in range(3):
        write(tmp_path / "a.jsonl", is_ended=False)
    names = sorted(path.name for path in tmp_path.iterdir())
    assert names == ["a.jsonl", "a.jsonl.attempt-1", "a.jsonl.attempt-2"]


@pytest.mark.parametrize(
    ("wall", "boot", "words"),
    [
        (10.0, 10.0, []),
        (10.2, 10.0, []),
        (40.0, 10.0, ["clock jump"]),
        (-50.0, 10.0, ["clock jump"]),
        (3_610.0, 3_610.0, ["clock jump", "slept"]),
    ],
)
def test_clocks_that_part_are_reported(wall: float, boot: float, words: list[str]) -> None:
    now = [0.0, 0.0, 0.0]
    clocks = Clocks(
        monotonic_ns=lambda: round(now[0] * 1e9),
        wall_ns=lambda: round(now[1] * 1e9),
        boot_ns=lambda: round(now[2] * 1e9),
    )
    watch = ClockWatch(clocks)
    now[:] = [10.0, wall, boot]
    problems = watch.problems()
    assert len(problems) == len(words)
    assert all(word in problem for word, problem in zip(words, problems, strict=True))
