"""``lossguard lattice`` as a command that comes in through an entry point."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import jsonschema
import pytest

from lossguard.cli.main import run
from lossguard_mechanisms.replay.store import SUFFIX, save_recording
from tests.mechanisms.replay.toy_recordings import recording

ROOT = Path(__file__).resolve().parents[3]
SCHEMA = ROOT / "mechanisms" / "lossguard_mechanisms" / "replay" / "lattice-replay-2.json"
pytestmark = pytest.mark.usefixtures("lattice_command")
LENGTHS = (12, 9, 15, 20, 11, 7)


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Two recordings, one without edges."""
    for name, has_edges in (("a", True), ("b", False)):
        toy = recording(LENGTHS, has_edges=has_edges, seed=4, sets=["chat", "math"] * 3)
        save_recording(tmp_path / f"{name}{SUFFIX}", toy)
    return tmp_path


def test_replay_prints_tau_by_policy_and_set(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report, plot = folder / "tau.json", folder / "tau.svg"
    arguments = ["lattice", "replay", str(folder), "--nodes", "4,8", "--json", str(report), "--plot", str(plot)]
    assert run(arguments) == 0
    text = capsys.readouterr().out
    head = next(line for line in text.splitlines() if "policy" in line)
    assert head.split() == ["policy", "nodes", "all", "chat", "math", "over", "chain"]
    names = [line.split()[0].rstrip(",") for line in text.splitlines() if "±" in line]
    with_edges = ["chain", *(name for name in ("ddtree", "best-first", "eagle-2", "static") for _ in "48"), "oracle"]
    without_edges = [name for name in with_edges if name not in ("best-first", "eagle-2")]
    assert names == with_edges + without_edges
    assert "note: best-first, eagle-2 left out: no edges of toy are recorded" in text
    data = json.loads(report.read_text())
    jsonschema.validate(data, json.loads(SCHEMA.read_text(encoding="utf-8")))
    assert [entry["name"] for entry in data["recordings"]] == ["a", "b"]
    chain = data["recordings"][0]["policies"][0]
    assert sum(chain["tokens_by_request"]) == sum(LENGTHS) - len(LENGTHS)
    assert chain["tau"]["all"]["value"] == pytest.approx(
        sum(chain["tokens_by_request"]) / sum(chain["steps_by_request"])
    )
    assert chain["gain_over_chain"]["all"]["value"] == 1.0
    assert chain["tau"]["all"]["low"] < chain["tau"]["all"]["value"] < chain["tau"]["all"]["high"]
    assert plot.read_text().startswith("<?xml")


def test_named_policies_alone_are_replayed(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / f"a{SUFFIX}"
    assert run(["lattice", "replay", str(path), "--policy", "best-first", "--policy", "chain", "--nodes", "16"]) == 0
    lines = [line.split()[:2] for line in capsys.readouterr().out.splitlines() if "±" in line]
    assert lines == [["chain", "4"], ["best-first", "16"]]


def test_info_says_what_a_recording_holds(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    report = folder / "info.json"
    assert run(["lattice", "info", str(folder), "--json", str(report)]) == 0
    text = capsys.readouterr().out
    assert "6 requests, 74 reply tokens, 4 depths x 5 candidates, edges of 5, confidence" in text
    assert "no edges, no confidence" in text
    sizes = [entry["num_bytes"] for entry in json.loads(report.read_text())["recordings"]]
    assert sizes == [(folder / f"{name}{SUFFIX}").stat().st_size for name in "ab"]


@pytest.mark.parametrize(
    ("arguments", "exit_code", "expected"),
    [
        (["replay", "nowhere"], 4, "LG1606"),
        (["replay", "FOLDER", "--policy", "best"], 4, "LG1607"),
        (["replay", "FOLDER", "--policy", "best-first"], 4, "LG1608"),
        (["replay", "FOLDER", "--nodes", "8,x"], 4, "LG1609"),
        (["replay", "FOLDER", "--nodes", "0"], 4, "LG1609"),
        (["record", "FOLDER", "FOLDER", "FOLDER/out.safetensors"], 4, "LG1614"),
        (["record", "FOLDER", "FOLDER", f"FOLDER/out{SUFFIX}", "--dtype", "int8"], 4, "LG1614"),
        (["record", "FOLDER", "FOLDER", f"FOLDER/out{SUFFIX}", "--device", "nothing"], 4, "LG1614"),
        (["record", "FOLDER", "FOLDER", f"FOLDER/out{SUFFIX}"], 4, "LG1302"),
    ],
)
def test_mistakes_have_a_code(
    folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], exit_code: int, expected: str
) -> None:
    assert run(["lattice", *(argument.replace("FOLDER", str(folder)) for argument in arguments)]) == exit_code
    assert expected in capsys.readouterr().err


def test_damage_is_an_error_of_its_own(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = folder / f"a{SUFFIX}"
    data = bytearray(path.read_bytes())
    data[-3] ^= 1
    path.write_bytes(data)
    assert run(["lattice", "replay", str(path)]) == 3
    assert "LG1603" in capsys.readouterr().err


def test_the_command_line_loads_neither_torch_nor_numpy() -> None:
    paths = [str(ROOT), str(ROOT / "mechanisms")]
    script = (
        f"import sys; sys.path[:0] = {paths!r}; import lossguard_mechanisms.replay.command; "
        "print(sorted({'torch', 'numpy', 'scipy', 'matplotlib'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "[]"


def test_replaying_loads_no_torch(folder: Path) -> None:
    paths = [str(ROOT), str(ROOT / "mechanisms")]
    script = (
        f"import sys; sys.path[:0] = {paths!r}; from pathlib import Path; "
        "from lossguard_mechanisms.replay.comparison import compare; "
        "from lossguard_mechanisms.replay.store import load_recording; "
        f"compare('a', load_recording(Path({str(folder / f'a{SUFFIX}')!r})), [], [4]); "
        "print('torch' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True, timeout=60)
    assert done.stdout.strip() == "False"
