"""Several verbs in one test, options of verbs, and what a speed claim needs."""

from __future__ import annotations

from tests.pytest_plugin.conftest import CONFIGURATION, Project, claim

XFAIL = '@pytest.mark.xfail(reason="not yet fast")'


def test_other_options_are_another_measurement(project: Project) -> None:
    verbs = "lossguard.assert_faster(than=1.2); lossguard.assert_faster(than=1.2, metric='ttft')"
    project.write(claim("p", "good", body=f"{verbs}; {verbs}"))
    assert project.run().code == 0
    assert project.served == ["time faster 1.2 None latency", "time faster 1.2 None ttft"]


def test_a_speed_claim_needs_its_devices_too(project: Project) -> None:
    project.write(claim("p", "good", body="lossguard.assert_faster()").replace('"good"', '"good", gpus=8'))
    done = project.run("--lossguard-devices=cpu:0")
    assert done.code == 1
    assert "needs 8 devices" in done.out
    assert project.served == []


def test_the_verb_decides_the_rule_not_the_configuration(project: Project) -> None:
    project.write(claim("p", "good", body="lossguard.assert_not_slower()"))
    (project.path / "lossguard.toml").write_text(CONFIGURATION + "[timing]\nfaster_than = 1.2\n")
    done = project.run()
    assert done.code == 0, done.out
    assert project.served == ["time not-slower None 0.01 latency"]


def test_an_expected_fail_of_speed_beside_a_pass_is_red(both: Project) -> None:
    both.write(claim("p", "good", body="lossguard.assert_lossless(); lossguard.assert_faster(than=9.0)", above=XFAIL))
    assert both.run().code == 1


def test_an_expected_fail_of_speed_excuses_no_lossy_reply(both: Project) -> None:
    body = "lossguard.assert_lossless(); lossguard.assert_not_slower(margin=0.5)"
    both.write(claim("p", "bad", body=body, above=XFAIL))
    done = both.run()
    assert done.code == 1, done.out
    assert "beside the FAIL there is PASS" in done.out


def test_an_error_beside_an_expected_fail_is_red(project: Project) -> None:
    body = "lossguard.assert_lossless(); lossguard.assert_faster(nonsense=1)"
    project.write(claim("p", "bad", body=body, above=XFAIL))
    assert project.run().code == 1


def test_verbs_that_all_fail_are_expected_to(both: Project) -> None:
    body = "lossguard.assert_lossless(); lossguard.assert_faster(than=9.0)"
    both.write(claim("p", "bad", body=body, above=XFAIL))
    done = both.run()
    assert done.code == 0, done.out
    assert "1 failed as expected" in done.line
