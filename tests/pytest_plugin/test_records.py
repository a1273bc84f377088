"""Records: made by one session, used by the next, refused where they do not fit, never made unasked."""

from __future__ import annotations

import fcntl
import json
import os
import re
from pathlib import Path

import pytest

from tests.pytest_plugin.conftest import Project, claim

TESTS = claim("tree/one", "good") + claim("tree/two", "good")
WITHOUT_STOCK = 'model = "model"\n[systems.good]\nengine = "none"\n'


def records(project: Project) -> list[Path]:
    return sorted((project.path / ".lossguard-baselines" / "stock").glob("*"))


def test_recorded_then_kept_then_judged_by(both: Project) -> None:
    both.write(TESTS)
    done = both.run("--lossguard-update=new", "--lossguard-json=report.json")
    assert done.code == 0, done.out
    assert "lossguard: RECORDED (recorded: 2, kept: 0) -> exit 0" in done.line
    assert both.served == ["record tree/one", "record tree/two"]
    files = records(both)
    assert [path.name.rpartition("-")[0] for path in files] == ["tree-one", "tree-two"]
    report = json.loads((both.path / "report.json").read_text())
    assert report["outcome"]["recorded"] == 2
    assert "PASS" not in {entry["status"] for entry in report["claims"]}

    both.write(TESTS + claim("tree/three", "good"))
    done = both.run("--lossguard-update=new")
    assert "recorded: 1, kept: 2" in done.line
    assert len(records(both)) == 3

    (both.path / "served.txt").unlink()
    done = both.run()
    assert done.code == 0
    (header,) = [line for line in done.out.splitlines() if line.startswith("lossguard 0")]
    assert re.search(r"baseline=stock@[0-9a-f]{8} \(3 records of 2026-01-02 in .*stock; claims without", header)
    assert "power: a true excess of 0.46 points gets FAIL 90 times in 100" in header
    assert both.served == sorted(f"serve good by {path.name} standard" for path in records(both))


def test_update_all_records_again(project: Project) -> None:
    project.write(TESTS)
    project.run("--lossguard-update=new")
    before = {path: path.stat().st_mtime_ns for path in records(project)}
    assert "recorded: 2, kept: 0" in project.run("--lossguard-update=all").line
    assert before.keys() == {*records(project)}
    assert all(path.stat().st_mtime_ns > before[path] for path in records(project))


def test_recording_in_ci_is_refused_unless_allowed(project: Project, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", "true")
    project.write(TESTS)
    done = project.run("--lossguard-update=new")
    assert done.code == 4
    assert "LG0709" in done.err
    assert records(project) == []
    assert project.served == []
    assert project.run("--lossguard-update=new", "--lossguard-allow-ci-update").code == 0


def test_a_test_that_fails_is_not_recorded(both: Project) -> None:
    both.write(claim("a", "good", body="lossguard.assert_lossless(); assert False") + claim("b", "good"))
    done = both.run("--lossguard-update=new")
    assert done.code == 1
    assert "FAILED (recorded: 1, kept: 0, 0 fail, 1 inconclusive, 0 lost)" in done.line
    assert [path.name[:2] for path in records(both)] == ["b-"]


def test_a_store_that_cannot_be_written_is_refused_before_anything_runs(both: Project) -> None:
    both.write(TESTS)
    (both.path / "file").write_text("")
    done = both.run("--lossguard-update=new", "--lossguard-baselines-dir=file/below")
    assert done.code == 4, done.out
    assert "LG0707" in done.err
    assert both.served == []


def test_live_leaves_the_record_alone(project: Project) -> None:
    project.write(claim("a", "good"))
    project.run("--lossguard-update=new")
    done = project.run("--lossguard-live")
    assert "baseline=stock (live)" in done.out
    assert "serve good by live standard" in project.served


def test_a_claim_without_a_record_runs_live_where_the_system_is_known(project: Project) -> None:
    project.write(claim("a", "good"))
    project.run("--lossguard-update=new")
    project.write(claim("a", "good") + claim("b", "good"))
    done = project.run()
    assert done.code == 0
    assert "good against stock (live)" in done.out
    assert "good against stock (record)" in done.out


def test_a_claim_with_neither_record_nor_system_is_inconclusive(both: Project) -> None:
    both.write(claim("a", "good"))
    both.run("--lossguard-update=new")
    both.write(claim("a", "good") + claim("b", "good"))
    (both.path / "lossguard.toml").write_text(WITHOUT_STOCK)
    done = both.run()
    assert done.code == 1, done.out
    assert "FAILED (1 pass, 0 fail, 1 inconclusive, 0 lost)" in done.line
    assert "stock has no record of this claim and is no system" in done.out


@pytest.mark.parametrize("damage", ["half", "flipped", "future"])
def test_a_damaged_record_is_refused_before_anything_runs(both: Project, damage: str) -> None:
    both.write(claim("a", "good") + claim("b", "good"))
    both.run("--lossguard-update=new")
    (both.path / "served.txt").unlink()
    path = records(both)[0]
    whole = path.read_bytes()
    if damage == "half":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "flipped":
        path.write_bytes(whole[:-9] + bytes([whole[-9] ^ 1]) + whole[-8:])
    else:
        path.write_bytes(future(whole))
    done = both.run()
    assert done.code == 4, done.out
    assert ("LG0703" if damage == "future" else "LG0702") in done.err
    assert both.served == []


def future(whole: bytes) -> bytes:
    """The file with a schema version that this lossguard does not know."""
    size = int.from_bytes(whole[:8], "little")
    header = whole[8 : 8 + size].decode()
    changed = header.replace('\\"schema_version\\":1', '\\"schema_version\\":9').replace(
        '\\"schema_version\\": 1', '\\"schema_version\\": 9'
    )
    assert changed != header, header[:400]
    return len(changed.encode()).to_bytes(8, "little") + changed.encode() + whole[8 + size :]


def test_a_baseline_may_be_a_folder_or_a_file(project: Project) -> None:
    project.write(claim("a", "good"))
    project.run("--lossguard-update=new")
    path = records(project)[0]
    assert project.run(baseline=f"./{path.parent.relative_to(project.path)}").code == 0
    assert project.run(baseline=f"./{path.relative_to(project.path)}").code == 0
    assert project.served.count(f"serve good by {path.name} standard") == 2
    done = project.run(baseline=f"./{path.parent.relative_to(project.path)}/other.safetensors")
    assert done.code == 4
    assert "LG0803" in done.err


def test_without_a_baseline_a_claim_is_inconclusive(both: Project) -> None:
    both.write(claim("a", "good"))
    done = both.run(baseline="")
    assert done.code == 1
    assert "no baseline is given" in done.out
    assert both.served == []


def test_a_record_that_is_not_comparable_is_refused_before_anything_runs(both: Project) -> None:
    both.write(claim("a", "good") + claim("b", "good"))
    both.run("--lossguard-update=new")
    (both.path / "served.txt").unlink()
    (both.path / "stock-has-changed").touch()
    done = both.run()
    assert done.code == 4, done.out
    assert "LG0705" in done.err
    assert both.served == []
    assert both.run("--lossguard-live").code == 0, "stock of here and now needs no record"


def test_a_record_with_other_parameters_is_named(both: Project) -> None:
    both.write(claim("a", "good"))
    both.run("--lossguard-update=new")
    (old,) = records(both)
    done = both.run("--lossguard-budget=quick", "--lossguard-json=out.json")
    assert done.code == 0, done.out
    words = f"no record of this claim with these parameters ({old.name} has sizes.max_tokens: recorded 256, asked 64"
    assert f"stock ran live ({words}" in done.out
    (entry,) = json.loads((both.path / "out.json").read_text())["claims"]
    assert entry["baseline_reason"].startswith(words)

    (both.path / "lossguard.toml").write_text(WITHOUT_STOCK)
    done = both.run("--lossguard-budget=quick")
    assert done.code == 1, done.out
    assert f"stock has {words}" in done.out


def test_a_second_session_does_not_record_into_the_same_store(both: Project) -> None:
    both.write(TESTS)
    root = both.path / ".lossguard-baselines"
    root.mkdir()
    held = os.open(root, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    done = both.run("--lossguard-update=new")
    assert done.code == 4, done.out
    assert "LG0813" in done.err
    assert both.served == []
    assert both.run().code == 0, "reading goes on"
    os.close(held)
    assert both.run("--lossguard-update=new").code == 0


OTHER_WRITER = (
    "def pytest_addoption(parser):\n"
    "    parser.addoption('--snapshot-update', action='store_true', dest='update_snapshots')\n"
)


def test_another_plugin_does_not_write_its_baselines_in_the_same_session(both: Project) -> None:
    both.write(TESTS, conftest=OTHER_WRITER)
    done = both.run("--lossguard-update=new", "--snapshot-update")
    assert done.code == 4, done.out
    assert "--lossguard-update and --snapshot-update are given together" in done.err
    assert both.served == []
    assert both.run("--snapshot-update").code == 0, "only a session that records is refused"


def test_repeats_are_recorded_and_judged(both: Project) -> None:
    repeated = claim("a", "good").replace('claim="a"', 'claim="a", repeats=3')
    both.write(repeated)
    both.run("--lossguard-update=new")
    assert both.run().code == 0
    (path,) = records(both)
    assert f"serve good by {path.name} standard x3" in both.served
    both.write(claim("a", "good"))
    assert "repeats: recorded 3, asked 1" in both.run().out
