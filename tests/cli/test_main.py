"""The command line: help, exit codes, and errors on stderr."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lossguard.cli.main import run


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--help"]) == 0
    text = capsys.readouterr().out
    for command in ("demo", "check", "score", "baseline", "rejudge", "recheck", "selftest", "doctor"):
        assert command in text


@pytest.mark.parametrize("command", ["demo", "check", "score", "baseline", "rejudge", "recheck", "selftest", "doctor"])
def test_each_command_has_help(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run([command, "--help"]) == 0
    assert "Usage" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["check", "--candidate", "x", "--config", "absent.toml"], "LG0601"),
        (["rejudge", "absent"], "LG0605"),
        (["recheck", "absent", "--request", "a", "--position", "1"], "LG0605"),
        (["check", "--resume", "absent"], "LG0605"),
        (["check"], "--candidate"),
        (["chekc"], "No such command"),
        (["check", "--budgt", "quick"], "No such option"),
        (["selftest", "losslesness"], "LG0901"),
        (["selftest", "losslessness", "--size", "3"], "20"),
        (["score", "absent.jsonl", "--model", "smollm2"], "LG0616"),
    ],
)
def test_usage_errors_exit_4(
    arguments: list[str],
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == 4
    assert expected in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == [], "nothing was started"


def test_unknown_candidate_names_the_near_miss(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "lossguard.toml").write_text(
        'model = "smollm2"\n[systems.stock]\nengine = "callable"\n[systems.dflash]\nengine = "callable"\n'
    )
    monkeypatch.chdir(tmp_path)
    assert run(["check", "--candidate", "dflsh"]) == 4
    assert "Did you mean 'dflash'" in capsys.readouterr().err


def test_score_refuses_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = tmp_path / "replies.jsonl"
    source.write_text(
        json.dumps({"prompt_ids": [1], "output_ids": [2]}) + "\n" + json.dumps({"prompt": "hello"}) + "\n"
    )
    assert run(["score", str(source), "--model", "smollm2"]) == 4
    error = capsys.readouterr().err
    assert f"{source}:2" in error
    assert "Did you mean 'prompt_ids'" in error
