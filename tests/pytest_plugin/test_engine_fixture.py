"""The fixture ``lossguard_engine``: one engine per system and process, and none beside a run."""

from __future__ import annotations

import pytest

from tests.pytest_plugin.conftest import Project, claim

USE = "    assert lossguard_engine({name}).name == '{found}'\n"


def serves(name: str, given: str, found: str) -> str:
    """The source of a test that serves by itself."""
    return f"def test_{name}(lossguard_engine):\n" + USE.format(name=given, found=found)


def opened(project: Project) -> list[str]:
    """What was started and closed, in order."""
    return (project.path / "served.txt").read_text().splitlines()


def test_an_engine_is_started_once_and_closed_at_the_end(project: Project) -> None:
    project.write(serves("a", "'stock'", "stock") + serves("b", "'stock'", "stock") + serves("c", "'good'", "good"))
    done = project.run(baseline="")
    assert done.code == 0, done.out
    assert opened(project) == ["open stock", "open good", "close good", "close stock"]
    assert done.line == "", "a session that makes no claim is not judged"


def test_no_engine_of_a_test_runs_beside_a_claim(both: Project) -> None:
    both.write(
        claim("p", "good", body="lossguard_engine('stock'); lossguard.assert_lossless()").replace(
            "(lossguard)", "(lossguard, lossguard_engine)"
        )
    )
    done = both.run()
    assert done.code == 0, done.out
    assert opened(both) == ["open stock", "close stock", "serve good by live standard"]


def test_no_engine_of_a_test_runs_beside_a_speed_claim(project: Project) -> None:
    project.write(
        claim("p", "good", body="lossguard_engine('stock'); lossguard.assert_faster()").replace(
            "(lossguard)", "(lossguard, lossguard_engine)"
        )
    )
    done = project.run()
    assert done.code == 0, done.out
    assert opened(project) == ["open stock", "close stock", "time faster 1.0 None latency"]


def test_without_a_name_it_is_the_candidate(project: Project) -> None:
    project.write(
        claim("p", "good", body="assert lossguard_engine().name == 'good'; lossguard.assert_lossless()").replace(
            "(lossguard)", "(lossguard, lossguard_engine)"
        )
        + serves("other", "", "unclear")
    )
    assert project.run("--lossguard-candidate=unclear").code == 0
    assert "open unclear" in opened(project)


def test_each_worker_has_its_own(distributed: Project) -> None:
    body = "import time; time.sleep(0.3); lossguard_engine('stock')"
    distributed.write("".join(f"def test_{n}(lossguard_engine): {body}\n" for n in range(8)))
    assert distributed.run(baseline="").code == 0
    assert sorted(opened(distributed)) == ["close stock"] * 2 + ["open stock"] * 2


@pytest.mark.parametrize(("given", "code"), [("", "LG0804"), ("'stok'", "LG0602")])
def test_a_system_that_is_not_there_fails_the_test(project: Project, given: str, code: str) -> None:
    project.write(serves("a", given, "x"))
    done = project.run(baseline="")
    assert done.code == 1
    assert code in done.out


def test_systems_of_fixtures_and_hooks(project: Project) -> None:
    project.write(
        serves("a", "", "candidate") + serves("b", "'hooked'", "mine") + serves("c", "'hooked'", "mine"),
        conftest=(
            "import pytest\nfrom lossguard import systems\n"
            "@pytest.fixture\ndef lossguard_system(): return lambda prompts, tokens: []\n"
            "def pytest_lossguard_engine(config, name): return systems.from_callable(lambda p, t: [], name='mine')\n"
        ),
    )
    done = project.run(baseline="")
    assert done.code == 0, done.out
    assert opened(project).count("open mine") == 1
