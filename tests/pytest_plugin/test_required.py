"""Claims that must reach a verdict: what is deselected, renamed or skipped does not vanish."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossguard.errors import UsageError
from lossguard.pytest_plugin.manifest import read_manifest
from tests.pytest_plugin.conftest import Project, claim


@pytest.fixture
def required(both: Project) -> Project:
    """Two required claims and one that is not."""
    both.write(
        claim("p/1", "good")
        + claim("p/2", "good")
        + claim("extra", "good", above='@pytest.mark.skip(reason="no device")')
    )
    (both.path / "claims.txt").write_text("# what a release needs\np/1\np/2  # the second\n")
    return both


def test_all_required_claims_pass(required: Project) -> None:
    done = required.run("--lossguard-require=claims.txt")
    assert done.code == 0, done.out
    assert "PASSED (2 pass, 1 skipped)" in done.line
    assert "2 claims required" in done.out


def test_deselecting_a_required_claim_is_red(required: Project) -> None:
    done = required.run("--lossguard-require=claims.txt", "-k", "p_1")
    assert done.code == 1
    assert "FAILED (1 pass, 0 fail, 1 inconclusive, 0 lost, deselected claims: 2)" in done.line
    assert "required, but no test of this session made it" in done.out


def test_last_failed_leaves_required_claims_out(project: Project) -> None:
    project.write(claim("p", "good") + claim("f", "bad"))
    (project.path / "claims.txt").write_text("p\nf\n")
    assert project.run().code == 1
    project.write(claim("p", "good") + claim("f", "good"))
    done = project.run("--lf", "--lossguard-require=claims.txt")
    assert done.code == 1, done.out
    assert "1 pass, 0 fail, 1 inconclusive" in done.line


def test_a_required_claim_that_is_skipped_is_red(project: Project) -> None:
    project.write(claim("p", "good", body='pytest.skip("no device")'))
    (project.path / "claims.txt").write_text("p\n")
    assert project.run("--lossguard-require=claims.txt").code == 1


def test_nothing_collected_stays_5(project: Project) -> None:
    project.write(claim("p", "good"))
    (project.path / "claims.txt").write_text("p\n")
    done = project.run("--lossguard-require=claims.txt", "-k", "nothing")
    assert done.code == 5
    assert "FAILED" in done.line


def test_the_manifest_may_stand_in_the_ini_file(project: Project) -> None:
    project.write(claim("p", "good"))
    project.pytester.makeini("[pytest]\nlossguard_require = claims.txt\nlossguard_baseline = stock\n")
    (project.path / "claims.txt").write_text("q\n")
    assert project.run(baseline="").code == 1


def test_a_manifest_that_is_not_there_is_refused(project: Project) -> None:
    project.write(claim("p", "good"))
    done = project.run("--lossguard-require=nowhere.txt")
    assert done.code == 4
    assert "LG0805" in done.err
    assert project.served == []


@pytest.mark.parametrize("text", ["", "# only a comment\n", "a\nb\na\n", "two words\n", "-dash\n"])
def test_a_manifest_that_says_nothing_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "claims.txt").write_text(text)
    with pytest.raises(UsageError, match="LG0805"):
        read_manifest(tmp_path / "claims.txt")


PLAIN_TEST = "\ndef test_plain(): pass\n"
INI = "[pytest]\nlossguard_baseline = stock\n"


def test_a_setting_is_red_where_every_claim_was_deselected(both: Project) -> None:
    both.write(claim("f", "bad") + PLAIN_TEST)
    both.pytester.makeini(INI)
    done = both.run("-k", "plain", baseline="")
    assert done.code == 1, done.out
    assert "nothing judged, deselected claims: 1" in done.line


def test_a_setting_is_green_where_no_claim_was_collected(both: Project) -> None:
    both.write(PLAIN_TEST)
    both.pytester.makeini(INI)
    assert both.run(baseline="").code == 0


def test_claims_that_are_deselected_are_counted(both: Project) -> None:
    both.write(claim("p", "good") + claim("f", "bad"))
    done = both.run("-k", "test_p")
    assert done.code == 0, done.out
    assert "PASSED (1 pass, deselected claims: 1)" in done.line


def test_a_module_that_skips_itself_is_named(both: Project) -> None:
    both.write(PLAIN_TEST)
    both.pytester.makepyfile(test_two="import pytest\npytest.importorskip('no_such_module')\n" + claim("f", "bad"))
    both.pytester.makeini(INI)
    done = both.run(baseline="")
    assert done.code == 1, done.out
    assert "modules skipped while collecting: test_two.py" in done.line
