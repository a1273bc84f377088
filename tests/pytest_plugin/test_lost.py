"""Workers that die, reports that never arrive, sessions that are left: absence is never a PASS."""

from __future__ import annotations

import json
import re

import pytest

from tests.pytest_plugin.conftest import Project, claim

KILL = "import signal; os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("body", ["os._exit(0)", KILL, f"lossguard.assert_lossless(); {KILL}"])
def test_a_worker_that_dies_loses_its_claim(distributed: Project, body: str) -> None:
    distributed.write(claim("p", "good") + claim("k", "good", body=body))
    done = distributed.run("--lossguard-json=report.json")
    assert done.code == 1, done.out
    assert "FAILED (1 pass, 0 fail, 0 inconclusive, 1 lost) -> exit 1" in done.line
    claims = {entry["id"]: entry for entry in json.loads((distributed.path / "report.json").read_text())["claims"]}
    assert claims["k"]["status"] == "LOST"
    assert "crashed while running" in claims["k"]["reason"]


def test_advisory_does_not_excuse_a_lost_worker(distributed: Project) -> None:
    distributed.write(claim("p", "good") + claim("k", "good", body=KILL))
    assert distributed.run("--lossguard-advisory").code == 1


def test_every_worker_dies_and_none_is_replaced(distributed: Project) -> None:
    distributed.write(claim("a", "good", body=KILL) + claim("b", "good", body=KILL) + claim("c", "good"))
    done = distributed.run("--max-worker-restart=0")
    assert done.code not in (0, 5), done.out
    assert "FAILED" in done.line


@pytest.mark.parametrize("value", ["object()", "__import__('numpy').float64(1.5)", "Path('x')"])
def test_a_report_that_cannot_be_sent_is_noticed(distributed: Project, value: str) -> None:
    """A failing test whose report dies with its worker: pytest alone says exit 0 here."""
    lost = f"def test_other(record_property):\n    record_property('thing', {value})\n    assert False\n"
    distributed.write(claim("p", "good") + lost)
    done = distributed.run()
    # The worker ends by itself with a test still open. If xdist hears of that end before it hears of the error, its own
    # assertion fails: pytest then says 3 and prints no sections, so that only our line is left to tell of the loss.
    assert done.code == (3 if "worker_workerfinished" in done.out else 1), done.out
    assert done.code == 3 or "test_other" in done.out.split("lost: no end of these tests was reported")[1]
    assert re.search(r"FAILED \(.*[1-9] lost\)", done.line), done.out


def test_a_report_that_a_plugin_swallows_is_noticed(distributed: Project) -> None:
    swallow = (
        "import pytest\n@pytest.hookimpl(wrapper=True, tryfirst=True)\n"
        "def pytest_runtest_makereport(item, call):\n    report = yield\n"
        "    if item.name == 'test_s' and call.when != 'setup': report.when = 'setup'\n    return report\n"
    )
    distributed.write(claim("p", "good") + claim("s", "bad"), conftest=swallow)
    done = distributed.run()
    assert done.code == 1
    assert "1 lost" in done.line


def test_a_verdict_that_was_announced_and_never_arrived_is_noticed(distributed: Project) -> None:
    """The worker says it sent two verdicts; the controller has one."""
    strip = (
        "import pytest\n@pytest.hookimpl(wrapper=True)\n"
        "def pytest_report_to_serializable(config, report):\n    data = yield\n"
        "    if 'test_s' in getattr(report, 'nodeid', ''):\n"
        "        data['user_properties'] = [pair for pair in data['user_properties'] if pair[0] != 'lossguard']\n"
        "    return data\n"
    )
    distributed.write(claim("p", "good") + claim("s", "good"), conftest=strip)
    done = distributed.run()
    assert done.code == 1
    assert "1 pass, 0 fail, 1 inconclusive, 1 lost" in done.line


@pytest.mark.parametrize("dist", ["load", "loadscope", "loadfile", "loadgroup", "worksteal", "each"])
def test_every_way_to_distribute_gives_the_same_verdicts(project: Project, dist: str) -> None:
    """Some versions of xdist rename tests under loadgroup; claims keep their names, and nothing counts as lost."""
    project.workers = ("-n2", f"--dist={dist}") if dist != "each" else ("--tx=2*popen", "--dist=each")
    group = "@pytest.mark.xdist_group('timing')"
    project.write(claim("p", "good", above=group) + claim("f", "bad", above=group) + "def test_other(): pass\n")
    done = project.run("--lossguard-json=report.json")
    assert done.code == 1, done.out
    assert "FAILED (1 pass, 1 fail, 0 inconclusive, 0 lost) -> exit 1" in done.line
    report = json.loads((project.path / "report.json").read_text())
    assert [entry["id"] for entry in report["claims"]] == ["f", "p"]


def test_a_session_without_lossguard_is_left_alone(distributed: Project) -> None:
    """Plain xdist runs keep their exit code and print nothing of ours, even where xdist itself is wrong."""
    distributed.write("def test_other(): pass\n")
    done = distributed.run(baseline="")
    assert done.code == 0
    assert "lossguard" not in done.out.split("rootdir")[0]
    assert done.line == ""


@pytest.mark.parametrize("workers", [(), ("-n2",)])
def test_leaving_with_exit_code_0_is_red(project: Project, workers: tuple[str, ...]) -> None:
    project.workers = workers
    project.write(claim("l", "good", body='pytest.exit("done", returncode=0)') + claim("p", "good"))
    done = project.run()
    assert done.code != 0
    assert "FAILED" in done.line


def test_tests_not_run_after_a_failure_are_not_called_lost(project: Project) -> None:
    project.write(claim("f", "bad") + claim("p", "good") + "def test_other(): pass\n")
    done = project.run("-x")
    assert "FAILED (1 fail, 0 inconclusive, 0 lost, 2 not run: stopped early (stopping after 1 failures))" in done.line
    assert "not run: the session was stopped early: test_it.py::test_other" in done.out


def test_the_report_of_an_earlier_session_does_not_survive_a_killed_one(project: Project) -> None:
    (project.path / "report.json").write_text("{}")
    project.write(claim("k", "good", body=KILL))
    assert project.run("--lossguard-json=report.json").code != 0
    assert not (project.path / "report.json").exists()
