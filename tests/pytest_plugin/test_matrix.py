"""Everything that can become of a claim, with and without xdist: the same verdicts, the same exit codes."""

from __future__ import annotations

from dataclasses import dataclass

import pytest

from tests.pytest_plugin.conftest import Project, claim

PASS = claim("p", "good")
FAIL = claim("f", "bad")
UNCLEAR = claim("u", "unclear")
XFAIL = "@pytest.mark.xfail(strict=True)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """A project's tests, the arguments, and how it must end. ``line`` is a part of the closing line."""

    tests: str
    line: str
    code: int = 1
    arguments: tuple[str, ...] = ()
    conftest: str = ""


CASES = {
    "pass": Case(tests=PASS + "def test_other(): pass\n", code=0, line="PASSED (1 pass) -> exit 0"),
    "fail": Case(tests=PASS + FAIL, line="FAILED (1 pass, 1 fail, 0 inconclusive, 0 lost)"),
    "inconclusive": Case(tests=PASS + UNCLEAR, line="FAILED (1 pass, 0 fail, 1 inconclusive, 0 lost)"),
    "another test fails": Case(tests=PASS + "def test_other(): assert False\n", line="PASSED (1 pass) -> exit 1"),
    "a claim is skipped": Case(
        tests=PASS + claim("s", "good", body='pytest.skip("no device")'),
        line="FAILED (1 pass, 0 fail, 1 inconclusive, 0 lost)",
    ),
    "everything is skipped": Case(
        tests=claim("s", "good", above='@pytest.mark.skip(reason="no device")'),
        line="FAILED (0 fail, 1 inconclusive, 0 lost)",
    ),
    "error in a fixture": Case(
        tests="@pytest.fixture\ndef broken(): raise OSError('gone')\n"
        + claim("e", "good", above="@pytest.mark.usefixtures('broken')"),
        line="FAILED (0 fail, 1 inconclusive, 0 lost)",
    ),
    "error after the verdict": Case(
        tests=claim("e", "good", body="lossguard.assert_lossless(); assert 1 == 2"),
        line="FAILED (0 fail, 1 inconclusive, 0 lost)",
    ),
    "error in teardown": Case(
        tests="@pytest.fixture\ndef broken():\n    yield\n    raise OSError('gone')\n"
        + claim("e", "good", above="@pytest.mark.usefixtures('broken')"),
        line="FAILED (0 fail, 1 inconclusive, 0 lost)",
    ),
    "no verdict": Case(tests=claim("n", "good", body="pass"), line="FAILED (0 fail, 1 inconclusive, 0 lost)"),
    "the verdict is swallowed": Case(
        tests=claim("f", "bad", body="\n    try: lossguard.assert_lossless()\n    except BaseException: pass"),
        line="FAILED (1 fail, 0 inconclusive, 0 lost)",
    ),
    "foreign values in properties": Case(
        tests="@pytest.fixture(autouse=True)\ndef props(record_property):\n"
        "    record_property('path', Path('x')); record_property('thing', object())\n" + PASS,
        code=0,
        line="PASSED (1 pass)",
    ),
    "a forged message": Case(
        tests="@pytest.fixture(autouse=True)\ndef props(record_property): record_property('lossguard', '{}')\n" + PASS,
        line="FAILED (0 fail, 1 inconclusive, 0 lost)",
    ),
    "the engine dies": Case(tests=PASS + claim("d", "dead"), line="FAILED (1 pass, 0 fail, 1 inconclusive, 0 lost)"),
    "the baseline is not comparable": Case(
        tests=PASS + claim("o", "foreign"), code=4, line="FAILED (1 pass, 0 fail, 1 inconclusive, 0 lost) -> exit 4"
    ),
    "not comparable, and a failure": Case(
        tests=FAIL + claim("o", "foreign"), line="FAILED (1 fail, 1 inconclusive, 0 lost)"
    ),
    "a speed claim": Case(
        tests=claim("t", "good", body="lossguard.assert_faster(than=1.2)"), code=0, line="PASSED (1 pass)"
    ),
    "a speed claim that fails": Case(
        tests=claim("t", "bad", body="lossguard.assert_not_slower(margin=0.02)"), line="FAILED (1 fail, "
    ),
    "a timing option that does not exist": Case(
        tests=claim("t", "good", body="lossguard.assert_faster(pears=3)"), code=4, line="FAILED (0 fail, 1 inconcl"
    ),
    "the second verb of a test is judged too": Case(
        tests=claim("t", "good", body="lossguard.assert_lossless(); lossguard.assert_faster(than=9.0)"),
        line="FAILED (1 fail, ",
    ),
    "no candidate": Case(tests=claim("c"), code=4, line="FAILED (0 fail, 1 inconclusive, 0 lost) -> exit 4"),
    "expected to fail": Case(
        tests=PASS + claim("x", "bad", above=XFAIL), code=0, line="PASSED (1 pass, 1 failed as expected)"
    ),
    "expected to fail, and unclear": Case(
        tests=claim("x", "unclear", above=XFAIL), line="FAILED (0 fail, 1 inconclusive, 0 lost)"
    ),
    "expected to fail, and an error": Case(
        tests=claim("x", "good", above=XFAIL, body="assert False"), line="FAILED (0 fail, 1 inconclusive, 0 lost)"
    ),
    "expected to fail, and passes": Case(tests=claim("x", "good", above=XFAIL), line="FAILED (1 fail, "),
    "might fail, and passes": Case(tests=claim("x", "good", above="@pytest.mark.xfail"), line="FAILED (1 fail, "),
    "stopped at the first failure": Case(tests=FAIL + PASS, arguments=("-x",), line="FAILED ("),
    "interrupted": Case(tests=claim("k", "good", body="raise KeyboardInterrupt"), code=2, line="FAILED ("),
    "no terminal": Case(tests=FAIL, arguments=("-p", "no:terminal"), line="FAILED (1 fail, 0 inconclusive, 0 lost)"),
    "no terminal, pass": Case(tests=PASS, code=0, arguments=("-p", "no:terminal"), line="PASSED (1 pass)"),
    "no cache": Case(tests=FAIL, arguments=("-p", "no:cacheprovider"), line="FAILED (1 fail, "),
    "nothing selected": Case(
        tests=PASS, code=5, arguments=("-k", "nothing"), line="FAILED (nothing judged, deselected claims: 1)"
    ),
    "no claim among the tests": Case(tests="def test_other(): pass\n", line="FAILED (no claim was collected)"),
    "advisory": Case(
        tests=PASS + FAIL + UNCLEAR,
        code=0,
        arguments=("--lossguard-advisory",),
        line="ADVISORY, NOT ENFORCED (1 pass, 1 fail, 1 inconclusive, 0 lost) -> exit 0",
    ),
    "advisory, and a test fails": Case(
        tests=PASS + "def test_other(): assert False\n", arguments=("--lossguard-advisory",), line="ADVISORY"
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_claim_ends_the_same_everywhere(everywhere: Project, case: Case) -> None:
    everywhere.write(case.tests, conftest=case.conftest)
    done = everywhere.run(*case.arguments)
    assert case.line in done.line, done.out + done.err
    assert done.code == case.code, done.out + done.err
    assert done.line.endswith(f"-> exit {done.code}")


REFUSED = {
    "a positional argument": ('@pytest.mark.lossguard("x")\ndef test_it(lossguard): pass\n', "LG0801"),
    "an unknown argument": (
        '@pytest.mark.lossguard(clam="x")\ndef test_it(lossguard): pass\n',
        "Did you mean 'claim'?",
    ),
    "no claim": ('@pytest.mark.lossguard(candidate="x")\ndef test_it(lossguard): pass\n', "LG0801"),
    "another type": ("@pytest.mark.lossguard(claim=3)\ndef test_it(lossguard): pass\n", "LG0801"),
    "repeats that are no number": (claim("x").replace('"x"', '"x", repeats="2"'), "repeats= must be a whole number"),
    "no repeat at all": (claim("x").replace('"x"', '"x", repeats=0'), "repeats= must be a whole number"),
    "a truth value for a number": (claim("x").replace('"x"', '"x", gpus=True'), "gpus= must be a whole number"),
    "an unknown rule": (claim("x").replace('"x"', '"x", rule="strict"'), "the marker has no argument 'rule'"),
    "an unknown budget": (
        '@pytest.mark.lossguard(claim="x", budget="quik")\ndef test_it(lossguard): pass\n',
        "Did you mean 'quick'?",
    ),
    "a claim made twice": (claim("x/y", "good") + claim("x/y", "bad").replace("test_x_y", "test_2"), "LG0802"),
    "no marker": ("def test_it(lossguard): pass\n", "LG0811"),
    "an unknown baseline": (
        '@pytest.mark.lossguard(claim="x", baseline="stok")\ndef test_it(lossguard): pass\n',
        "Did you mean 'stock'?",
    ),
}


@pytest.mark.parametrize(("tests", "text"), REFUSED.values(), ids=REFUSED)
def test_what_does_not_fit_is_refused_before_anything_runs(everywhere: Project, tests: str, text: str) -> None:
    everywhere.write(claim("p", "good") + tests)
    done = everywhere.run()
    assert done.code == 4, done.out + done.err
    assert text in done.err
    assert everywhere.served == []


def test_an_unknown_baseline_is_refused_before_anything_runs(everywhere: Project) -> None:
    everywhere.write(claim("p", "good"))
    done = everywhere.run(baseline="stok")
    assert done.code == 4
    assert "Did you mean 'stock'?" in done.err
    assert "LG0803" in done.err
    assert everywhere.served == []
