"""``lossguard w12`` as a command that comes in through an entry point."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from lossguard.cli.main import run

ROOT = Path(__file__).resolve().parents[4]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(autouse=True)
def registered(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point as the installed package declares it, also where only the source tree is there."""
    folder = tmp_path_factory.mktemp("site")
    metadata = folder / "w12_commands-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: w12-commands\nVersion: 0\n")
    target = PROJECT["entry-points"]["lossguard.commands"]["w12"]
    (metadata / "entry_points.txt").write_text(f"[lossguard.commands]\nw12 = {target}\n")
    monkeypatch.syspath_prepend(folder)


def test_the_three_steps(two_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    assert run(["w12", "convert", str(two_shards), str(out)]) == 0
    assert "2 shards written, 0 kept" in capsys.readouterr().out
    assert run(["w12", "convert", str(two_shards), str(out)]) == 0
    assert "0 shards written, 2 kept" in capsys.readouterr().out
    assert run(["w12", "verify", str(out), str(two_shards)]) == 0
    assert "7 tensors" in (text := capsys.readouterr().out)
    assert "every bit is equal" in text
    report, plot = tmp_path / "info.json", tmp_path / "info.svg"
    assert run(["w12", "info", str(out), "--json", str(report), "--plot", str(plot)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[:3]] == ["a.bias", "a.weight", "mask"]
    assert "2 of 7 tensors in W12" in lines[7]
    assert len(json.loads(report.read_text())["tensors"]) == 7
    assert plot.read_text().startswith("<?xml")


def test_a_difference_exits_1(two_shards: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "out"
    run(["w12", "convert", str(two_shards), str(out)])
    (two_shards / "tokenizer.json").write_text("[1]")
    assert run(["w12", "verify", str(out), str(two_shards)]) == 1
    text = capsys.readouterr().out
    assert "DIFFERS  tokenizer.json" in text
    assert "NOT equal" in text


@pytest.mark.parametrize(
    ("arguments", "exit_code", "expected"),
    [
        (["w12", "convert", "absent", "out"], 4, "LG1207"),
        (["w12", "info", "absent"], 3, "LG1203"),
        (["w12", "verify", "absent", "absent"], 4, "LG1207"),
        (["w12", "convert", "a", "b", "--escape-limit", "0.5"], 4, "0.05"),
        (["w12", "covert"], 4, "No such command"),
    ],
)
def test_errors(
    arguments: list[str],
    exit_code: int,
    expected: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(arguments) == exit_code
    assert expected in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_help_lists_the_commands(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["w12", "--help"]) == 0
    text = capsys.readouterr().out
    assert all(command in text for command in ("convert", "verify", "info"))


def test_without_torch_it_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("lossguard_mechanisms.weights.w12.")]:
        if not name.endswith((".command", ".failures", ".layout")):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "torch", None)
    assert run(["w12", "info", str(tmp_path)]) == 4
    assert "lossguard[w12]" in capsys.readouterr().err


def test_listing_commands_imports_nothing_heavy() -> None:
    program = (
        "import sys; import lossguard_mechanisms.weights.w12.command; "
        "print(sorted({'torch', 'numpy', 'safetensors', 'transformers'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
