"""``lossguard baseline``: record, list, show, prune, from an empty project."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from lossguard.baseline.record import load_record
from lossguard.baseline.store import BaselineStore
from lossguard.cli.main import run
from tests.baseline.toy_system import write_project

SIZES = ["--budget", "4x6"]
STORE = Path(".lossguard-baselines")


@pytest.fixture(autouse=True)
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project of its own as the current folder, outside CI."""
    monkeypatch.setenv("LOSSGUARD_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("CI", raising=False)
    monkeypatch.chdir(tmp_path)
    write_project(tmp_path)
    return tmp_path


def recorded(*claims: str) -> int:
    return run(["baseline", "record", "stock", *SIZES, *(word for claim in claims for word in ("--claim", claim))])


def test_recorded_listed_shown_and_pruned(capsys: pytest.CaptureFixture[str]) -> None:
    assert recorded("tree/greedy", "cleanup/no-regression") == 0
    infos = {info.claim: info for info in BaselineStore(STORE).records("stock")}
    assert sorted(infos) == ["cleanup/no-regression", "tree/greedy"]
    first, second = (load_record(info.path) for info in infos.values())
    assert first.test == second.test, "stock was served once"
    assert len(list(Path(".lossguard").glob("run-*"))) == 1
    capsys.readouterr()

    assert run(["baseline", "list", "--json", "list.json"]) == 0
    listing = capsys.readouterr().out
    assert listing.count("4x6") == 2
    path = str(infos["tree/greedy"].path)
    assert f"stock  tree/greedy  4x6  {infos['tree/greedy'].created}  {path}" in listing
    assert {entry["claim"] for entry in json.loads(Path("list.json").read_text())["records"]} == set(infos)

    assert run(["baseline", "show", path, "--json", "shown.json"]) == 0
    assert "claim: tree/greedy" in capsys.readouterr().out
    shown = json.loads(Path("shown.json").read_text())
    assert shown["parameters"]["sizes"] == {"num_requests": 4, "max_tokens": 6, "num_calibration": 60}
    assert shown["fingerprint"]["engine.kind"] == "toy"

    prune = ["baseline", "prune", "stock", "--keep", "tree/greedy"]
    assert run(prune) == 0
    assert "would delete" in capsys.readouterr().out
    assert len(BaselineStore(STORE).records()) == 2
    assert run([*prune, "--delete"]) == 0
    assert [info.claim for info in BaselineStore(STORE).records()] == ["tree/greedy"]


def test_a_record_is_replaced_only_if_asked(capsys: pytest.CaptureFixture[str]) -> None:
    assert recorded("one") == 0
    (before,) = BaselineStore(STORE).records()
    assert recorded("one") == 4
    assert "give --replace" in capsys.readouterr().err
    assert run(["baseline", "record", "stock", *SIZES, "--claim", "one", "--replace"]) == 0
    (after,) = BaselineStore(STORE).records()
    assert after.path == before.path


@pytest.mark.parametrize("value", ["true", "1", "yes"])
def test_ci_records_only_if_asked(
    value: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("CI", value)
    assert recorded("one") == 4
    assert "LG0709" in capsys.readouterr().err
    assert not STORE.exists()
    assert not Path(".lossguard").exists()
    assert run(["baseline", "record", "stock", *SIZES, "--claim", "one", "--allow-ci"]) == 0


@pytest.mark.parametrize("value", ["", "0", "false"])
def test_ci_switched_off_is_no_ci(value: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CI", value)
    assert recorded("one") == 0


def test_an_interrupted_recording_is_resumed(capsys: pytest.CaptureFixture[str]) -> None:
    command = ["baseline", "record", "broken", "--claim", "one"]
    assert run([*command, *SIZES]) == 3
    assert not list(STORE.rglob("*.safetensors"))
    assert run([*command, "--resume", ".lossguard/run-0001", *SIZES]) == 4
    assert "leave the other options out" in capsys.readouterr().err
    assert run(["baseline", "record", "stock", "--claim", "one", "--resume", ".lossguard/run-0001"]) == 4
    assert "the stock of .lossguard/run-0001 is 'broken'" in capsys.readouterr().err
    assert run([*command, "--resume", ".lossguard/run-0001"]) == 0
    (info,) = BaselineStore(STORE).records("broken")
    assert info.sizes["num_requests"] == 4, "the plan is that of the run folder"


def test_the_stock_of_a_finished_run_is_recorded(capsys: pytest.CaptureFixture[str]) -> None:
    run(["check", "--candidate", "mine", *SIZES])
    command = ["baseline", "record", "stock", "--claim", "one", "--from", ".lossguard/run-0001"]
    assert run([*command, *SIZES]) == 4
    assert "leave the other options out" in capsys.readouterr().err
    assert run([*command, "--resume", ".lossguard/run-0001"]) == 4
    assert run(command) == 0
    (info,) = BaselineStore(STORE).records("stock")
    assert (info.claim, info.sizes["max_tokens"]) == ("one", 6)
    assert len(list(Path(".lossguard").glob("run-*"))) == 1, "nothing was served again"


def test_a_record_for_any_claim(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["baseline", "record", "stock", *SIZES, "--any-claim", "--claim", "one"]) == 0
    shared, own = BaselineStore(STORE).records("stock")
    assert (shared.path.name.rpartition("-")[0], own.claim) == ("any-claim", "one")
    assert "recorded any claim: " in capsys.readouterr().out
    assert run(["baseline", "list"]) == 0
    assert "stock  any claim  4x6" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["record", "stock"], "--any-claim"),
        (["record", "stok", "--claim", "one"], "Did you mean 'stock'"),
        (["record", "stock", "--claim", " "], "LG0708"),
        (["record", "stock", "--claim", "one", "--budget", "quik"], "Did you mean 'quick'"),
        (["show", "absent.safetensors"], "LG0701"),
        (["show", "lossguard.toml"], "LG0702"),
        (["prune", "stock"], "--keep"),
        (["prune", "stock", "--keep", "one", "--delete"], "no record has the claim 'one'"),
        (["list", "../x"], "LG0708"),
        (["lst"], "No such command"),
    ],
)
def test_usage_errors_exit_4(arguments: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["baseline", *arguments]) == 4
    assert expected in capsys.readouterr().err
    assert not STORE.exists()
    assert not Path(".lossguard").exists(), "nothing was started"


def test_a_damaged_record_makes_the_list_red(capsys: pytest.CaptureFixture[str]) -> None:
    assert recorded("one") == 0
    (info,) = BaselineStore(STORE).records()
    info.path.write_bytes(info.path.read_bytes()[:100])
    capsys.readouterr()
    assert run(["baseline", "list"]) == 4
    assert "LG0702" in capsys.readouterr().out


def test_an_empty_store_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["baseline", "list", "stock"]) == 0
    assert capsys.readouterr().out == f"no records in {STORE / 'stock'}\n"
