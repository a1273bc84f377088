"""What users see and set: header, summary, options, ini settings, fixtures, hooks, other plugins."""

from __future__ import annotations

import json
import re
import xml.etree.ElementTree as ElementTree

import jsonschema
import pytest

import lossguard_pytest
from lossguard.plan import BUDGETS, parse_budget
from lossguard.pytest_plugin.session_report import load_session_schema
from lossguard.pytest_plugin.transport import ClaimMessage
from tests.pytest_plugin.conftest import Project, claim

PASS = claim("tree/p", "good")
FAIL = claim("tree/f", "bad")


def test_the_summary_is_worst_first(both: Project) -> None:
    both.write(PASS + claim("tree/u", "unclear") + FAIL)
    out = both.run().out
    rows = [line.split()[:2] for line in out.splitlines() if re.match(r"(PASS|FAIL|INCONCLUSIVE) +tree/", line)]
    assert rows == [["FAIL", "tree/f"], ["INCONCLUSIVE", "tree/u"], ["PASS", "tree/p"]]
    assert "report of tree/f: run/report.json" in out


def test_a_failure_has_four_parts_and_the_first_divergence(project: Project) -> None:
    project.write(FAIL)
    out = project.run().out
    for part in ("claim tree/f: FAIL  rate: made up", "why it matters:", "what to do:", "reference:"):
        assert part in out
    assert 'served 7 " the"  best 11 " of"  gap 4.10 nats' in out
    assert "see it again: lossguard recheck run" in out
    assert "Traceback" not in out


def test_explain_shows_a_pass_too(project: Project) -> None:
    project.write(PASS)
    assert "LOSSLESS  good against stock" not in project.run().out
    assert "LOSSLESS  good against stock" in project.run("--lossguard-explain").out


def test_progress_is_shown_live_and_beside_a_failure(project: Project) -> None:
    line = "lossguard: serve good: 2 requests in 0 s"
    project.write(PASS)
    assert line in project.run("-s").out
    assert line not in project.run().out
    project.write(FAIL)
    out = project.run().out
    assert "lossguard: serve bad: 2 requests in 0 s" in out.split("Captured stdout call")[1]


def test_a_pass_says_what_it_could_have_caught(project: Project) -> None:
    project.write(PASS + FAIL)
    rows = [line for line in project.run().out.splitlines() if line.startswith(("PASS ", "FAIL "))]
    assert ["power: a true excess of 0.46 points gets FAIL 90 times in 100" in row for row in rows] == [False, True]


def test_the_header_says_what_was_asked(both: Project) -> None:
    both.write(PASS)
    out = both.run("--lossguard-seed=5", "--lossguard-budget=12x34", "--lossguard-advisory").out
    (line,) = [line for line in out.splitlines() if line.startswith("lossguard 0")]
    for part in ("baseline=stock (live: no record", "budget=12x34", "seed=5", "ADVISORY: verdicts do not fail"):
        assert part in line
    assert both.served == ["serve good by live 12x34"]


def test_a_marker_alone_brings_the_header(project: Project) -> None:
    project.write(PASS)
    assert "baseline=none" in project.run(baseline="").out


def test_a_plain_session_shows_nothing(project: Project) -> None:
    project.write("def test_other(): pass\n")
    done = project.run(baseline="")
    assert done.code == 0
    assert not [line for line in done.out.splitlines() if line.startswith("lossguard")]


def test_the_report_follows_its_schema(both: Project) -> None:
    both.write(PASS + FAIL + claim("s", "good", body="pytest.skip('x')"))
    done = both.run("--lossguard-json=out.json")
    report = json.loads((both.path / "out.json").read_text())
    jsonschema.Draft202012Validator(load_session_schema()).validate(report)
    assert report["outcome"]["exit_code"] == done.code == 1
    assert report["outcome"]["exit_reason"] in done.line
    assert [entry["status"] for entry in report["claims"]] == ["FAIL", "INCONCLUSIVE", "PASS"]
    assert report["claims"][0]["evidence"]["examples"][0]["gap_nats"] == 4.1


def test_junit_carries_the_verdict(both: Project) -> None:
    both.write(FAIL)
    done = both.run("--junitxml=junit.xml", "-W", "error")
    assert done.code == 1
    tree = ElementTree.parse(both.path / "junit.xml")
    found = {entry.get("name"): entry.get("value") for entry in tree.iter("property")}
    assert found["lossguard.claim"] == "tree/f"
    assert found["lossguard.verdict"] == "FAIL"
    assert found["lossguard.headline"] == "NOT LOSSLESS  bad against stock"
    assert found["lossguard.report"] == "run/report.json"
    assert ClaimMessage.from_text(found["lossguard"]).candidate == "bad"


def test_collect_only_judges_nothing(both: Project) -> None:
    both.write(FAIL)
    done = both.run("--collect-only")
    assert done.code == 0
    assert done.line == ""
    assert both.served == []


def test_setup_plan_proves_nothing(project: Project) -> None:
    project.write(PASS)
    assert project.run("--setup-plan").code == 1


def test_random_order_changes_nothing(both: Project) -> None:
    pytest.importorskip("pytest_randomly")
    both.write(PASS + FAIL + claim("u", "unclear"))
    for seed in ("1", "2"):
        done = both.run("-p", "randomly", f"--randomly-seed={seed}")
        assert done.code == 1
        assert "FAILED (1 pass, 1 fail, 1 inconclusive, 0 lost)" in done.line


@pytest.mark.parametrize(
    ("above", "arguments"),
    [("", ("--reruns=2",)), ("@pytest.mark.flaky(reruns=1)", ()), ("@pytest.mark.flaky", ())],
)
def test_reruns_of_claims_are_refused(both: Project, above: str, arguments: tuple[str, ...]) -> None:
    pytest.importorskip("pytest_rerunfailures")
    both.write(claim("p", "good", above=above))
    done = both.run("-p", "rerunfailures", *arguments)
    assert done.code == 4, done.out
    assert "LG0808" in done.err
    assert both.served == []


def test_reruns_of_other_tests_are_not(project: Project) -> None:
    pytest.importorskip("pytest_rerunfailures")
    project.write(claim("p", "good", above="@pytest.mark.flaky(reruns=0)") + "def test_other(): pass\n")
    assert project.run("-p", "rerunfailures", "--reruns=2").code == 0


def test_settings_of_the_ini_file(both: Project) -> None:
    both.write(claim("p"))
    both.pytester.makeini(
        "[pytest]\nlossguard_baseline = stock\nlossguard_candidate = good\nlossguard_budget = quick\n"
        "lossguard_json = out.json\n"
    )
    done = both.run(baseline="")
    assert done.code == 0
    assert both.served == ["serve good by live quick"]
    assert (both.path / "out.json").exists()
    assert both.run("--lossguard-candidate=bad", baseline="").code == 1


def test_an_ini_setting_that_does_not_fit_is_refused(project: Project) -> None:
    project.write(PASS)
    project.pytester.makeini("[pytest]\nlossguard_budget = quik\n")
    done = project.run()
    assert done.code == 4
    assert "LG0810" in done.err


def test_a_baseline_in_the_ini_file_does_not_make_other_tests_red(project: Project) -> None:
    project.write("def test_other(): pass\n")
    project.pytester.makeini("[pytest]\nlossguard_baseline = stock\n")
    done = project.run(baseline="")
    assert done.code == 0
    assert "NOTHING JUDGED (no claim was collected)" in done.line


@pytest.mark.parametrize(
    "argument", ["--lossguard-budget=quik", "--lossguard-update=yes", "--lossguard-seed=x", "--lossguard-baseline="]
)
def test_an_option_that_does_not_fit_is_refused(project: Project, argument: str) -> None:
    project.write(PASS)
    done = project.run(argument, baseline="")
    assert done.code == 4
    assert argument.partition("=")[0] in done.err


def test_help_names_every_option(project: Project) -> None:
    out = project.run("--help", baseline="").out
    for name, metavar, _, _ in lossguard_pytest.OPTIONS:
        assert f"--lossguard-{name}" in out
        if metavar is not None and name not in lossguard_pytest.COMMAND_LINE_ONLY:
            assert f"lossguard_{name.replace('-', '_')}" in out


def test_marks_of_class_and_test_are_merged(project: Project) -> None:
    project.write(
        "@pytest.mark.lossguard(candidate='bad', budget='quick')\nclass TestTree:\n"
        "    @pytest.mark.lossguard(claim='a', candidate='good')\n"
        "    def test_a(self, lossguard): lossguard.assert_lossless()\n"
        "    @pytest.mark.parametrize('n', [pytest.param(1, marks=pytest.mark.lossguard(claim='b-1')),\n"
        "                                   pytest.param(2, marks=pytest.mark.lossguard(claim='b-2'))])\n"
        "    def test_b(self, lossguard, n): lossguard.assert_lossless()\n"
    )
    assert "1 pass, 2 fail" in project.run().line
    assert project.served == ["serve bad by live quick", "serve bad by live quick", "serve good by live quick"]


SYSTEMS = {
    "a function": "return lambda prompts, tokens: []",
    "a name": "return 'good'",
    "a handle": "from lossguard import systems; return systems.from_callable(lambda p, t: [], name='good')",
}


@pytest.mark.parametrize("body", SYSTEMS.values(), ids=SYSTEMS)
def test_the_candidate_may_come_from_a_fixture(project: Project, body: str) -> None:
    project.write(
        claim("p"),
        conftest=f"import pytest\n@pytest.fixture\ndef lossguard_system(): {body}\n",
    )
    done = project.run()
    assert done.code == 0, done.out
    name = "candidate" if "prompts" in body else "good"
    assert project.served == [f"serve {name} by live standard"]


@pytest.mark.parametrize("body", SYSTEMS.values(), ids=SYSTEMS)
@pytest.mark.parametrize("is_marked", [True, False])
def test_a_fixture_does_not_replace_the_named_candidate(project: Project, body: str, *, is_marked: bool) -> None:
    name = "bad" if is_marked or "callable" not in body else "good"  # a handle of another name is a variant
    project.write(
        claim("p", name if is_marked else ""),
        conftest=f"import pytest\n@pytest.fixture\ndef lossguard_system(): {body}\n",
    )
    done = project.run(*([] if is_marked else [f"--lossguard-candidate={name}"]))
    assert done.code == 4, done.out
    assert "LG0815" in done.out
    assert project.served == []


def test_a_handle_with_a_name_of_its_own_is_a_variant_of_the_sessions_candidate(project: Project) -> None:
    project.write(
        claim("p"), conftest=f"import pytest\n@pytest.fixture\ndef lossguard_system(): {SYSTEMS['a handle']}\n"
    )
    assert project.run("--lossguard-candidate=bad").code == 0
    assert project.served == ["serve good by live standard"]


def test_recording_is_no_setting(project: Project) -> None:
    project.write(claim("f", "bad"))
    project.pytester.makeini("[pytest]\nlossguard_update = new\nlossguard_baseline = stock\n")
    done = project.run(baseline="")
    assert done.code == 1, done.out
    assert project.served == ["serve bad by live standard"]


def test_hooks_add_and_observe(both: Project) -> None:
    both.write(
        FAIL + claim("h", "hooked"),
        conftest=(
            "from lossguard import systems\n"
            "def pytest_lossguard_engine(config, name):\n"
            "    if name == 'hooked': return systems.from_callable(lambda p, t: [], name='good')\n"
            "def pytest_lossguard_fingerprint(config): return {'driver': '1.2'}\n"
            "def pytest_lossguard_verdict(config, claim, verdict):\n"
            "    with open('seen.txt', 'a') as file: file.write(f'{claim} {verdict}\\n')\n"
            "def pytest_lossguard_report(config, report):\n"
            "    report['outcome']['exit_code'] = 0\n"
            "    return {'mine': {'claims': len(report['claims'])}}\n"
        ),
    )
    done = both.run("--lossguard-json=out.json")
    assert done.code == 1
    report = json.loads((both.path / "out.json").read_text())
    assert report["facts"] == {"driver": "1.2"}
    assert report["sections"] == {"mine": {"claims": 2}}
    assert report["outcome"]["exit_code"] == 1, "a hook works on a copy"
    assert sorted((both.path / "seen.txt").read_text().splitlines()) == ["h PASS", "tree/f FAIL"]


def test_a_hook_that_returns_no_json_is_red(project: Project) -> None:
    project.write(PASS, conftest="def pytest_lossguard_fingerprint(config): return {'x': object()}\n")
    done = project.run("--lossguard-json=out.json")
    assert done.code == 1
    assert "LG0809" in done.line


def test_two_calls_are_one_verdict(project: Project) -> None:
    project.write(claim("p", "good", body="lossguard.assert_lossless(); lossguard.assert_lossless()"))
    assert project.run().code == 0
    assert len(project.served) == 1


def test_budget_names_are_those_of_plans() -> None:
    assert tuple(BUDGETS) == lossguard_pytest.BUDGET_NAMES
    for text in (*lossguard_pytest.BUDGET_NAMES, "210x24"):
        assert lossguard_pytest.budget_text(text) == parse_budget(text).name


FORKED = (
    "import sys, types\n"
    "def pytest_addoption(parser): parser.addoption('--forked', action='store_true', dest='forked')\n"
    "cuda = types.SimpleNamespace(is_initialized=lambda: {in_use})\n"
    "sys.modules['torch'] = types.SimpleNamespace(cuda=cuda)\n"
)


def test_forked_claims_after_cuda_was_initialised_are_refused(both: Project) -> None:
    both.write(PASS, conftest=FORKED.format(in_use=True))
    done = both.run("--forked")
    assert done.code == 4, done.out
    assert "LG0814" in done.err
    assert both.served == []
    assert both.run().code == 0
    both.write(PASS, conftest=FORKED.format(in_use=False))
    assert both.run("--forked").code == 0
