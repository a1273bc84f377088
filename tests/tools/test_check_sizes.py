"""The size check finds each kind of breach, and nothing in a clean file."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.check_sizes import breaches, main

CLEAN = '"""A module."""\n\n\ndef work() -> None:\n    """Nothing."""\n'


def place(root: Path, name: str, text: str) -> Path:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def function_of(num_lines: int) -> str:
    return "def work() -> None:\n" + "    pass\n" * (num_lines - 1)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("lossguard/long.py", "x = 1\n" * 501, "501 lines, 500 are allowed"),
        ("lossguard/deep.py", function_of(61), "work has 61 lines, 60 are allowed"),
        ("kernels/a/long.py", "x = 1\n" * 701, "701 lines, 700 are allowed"),
        ("kernels/a/deep.py", function_of(121), "work has 121 lines, 120 are allowed"),
        ("lossguard/utils.py", CLEAN, "name the file after its one idea"),
        ("lossguard/catch.py", "try:\n    pass\nexcept:\n    pass\n", "catches everything"),
        ("lossguard/catch.py", "try:\n    pass\nexcept Exception:\n    pass\n", "catches everything"),
        ("lossguard/catch.py", "try:\n    pass\nexcept (OSError, BaseException):\n    pass\n", "catches everything"),
        (
            "lossguard/catch.py",
            "try:\n    pass\nexcept Exception:  # boundary: foreign\n    pass\n",
            "catches everything",
        ),
        ("lossguard/catch.py", "try:\n    pass\nexcept Exception:\n    raise OSError\n", "catches everything"),
        ("docs/a.md", "run it in /wor" + "k/here\n", "docs/a.md:1: a path of a build machine"),
        ("Makefile", "\tpip install -i https://pypi" + ".org/simple\n", "the name of a host"),
    ],
)
def test_a_breach_is_found(tmp_path: Path, name: str, text: str, expected: str) -> None:
    found = list(breaches(place(tmp_path, name, text), name))
    assert len(found) == 1
    assert expected in found[0]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("lossguard/clean.py", CLEAN),
        ("lossguard/at_the_limit.py", function_of(60)),
        ("kernels/a/long.py", "x = 1\n" * 700),
        ("docs/a.md", "the framework/test split\n"),
        ("lossguard/catch.py", "try:\n    pass\nexcept (OSError, ValueError):\n    pass\n"),
        (
            "lossguard/catch.py",
            "try:\n    pass\nexcept Exception as e:  # boundary: foreign\n    raise OSError from e\n",
        ),
    ],
)
def test_a_clean_file_has_no_breach(tmp_path: Path, name: str, text: str) -> None:
    assert list(breaches(place(tmp_path, name, text), name)) == []


def test_exit_code_and_count(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place(tmp_path, "lossguard/clean.py", CLEAN)
    assert main(tmp_path) == 0
    place(tmp_path, "tests/deep/utils.py", CLEAN)
    assert main(tmp_path) == 1
    assert capsys.readouterr().out.endswith("sizes: 2 files, 1 breaches\n")


def test_this_repository_is_clean(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(Path(__file__).resolve().parents[2]) == 0, capsys.readouterr().out
