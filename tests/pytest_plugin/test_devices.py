"""A device per worker, kept by the worker that takes a dead one's place."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lossguard.errors import UsageError
from lossguard.pytest_plugin.devices import (
    Ledger,
    assign,
    device_environment,
    lack,
    parse_devices,
    require_lease,
    restore,
    restrict_this_process,
)
from tests.pytest_plugin.conftest import Project, claim

DEVICES = "--lossguard-devices=cpu:0,cpu:1"
NOTE = (
    "@pytest.fixture(autouse=True)\ndef note(lossguard_device):\n"
    "    line = f\"{os.environ['PYTEST_XDIST_WORKER']} {lossguard_device}\\n\"\n"
    "    with open('devices.txt', 'a') as file: file.write(line)\n"
)


@dataclass
class Spec:
    """What a worker is started from."""

    env: dict[str, str] = field(default_factory=dict)


def test_devices_survive_the_replacement_of_a_worker(distributed: Project) -> None:
    kill = "\n    import time; time.sleep(0.5)\n    if i == 0: os._exit(1)\n"
    distributed.write(NOTE + claim("p", "good") + f"@pytest.mark.parametrize('i', range(12))\ndef test_other(i):{kill}")
    done = distributed.run(DEVICES)
    assert done.code == 1
    pairs = {tuple(line.split()) for line in (distributed.path / "devices.txt").read_text().splitlines()}
    owners: dict[str, str] = dict(pairs)  # type: ignore[arg-type]
    assert len(pairs) == len(owners) == 3, "each worker had one device, and one worker was replaced"
    assert {owners["gw0"], owners["gw1"]} == {"cpu:0", "cpu:1"}
    (dead,) = [name for name in ("gw0", "gw1") if f"node down: {name}" in done.out or f"[{name}] node down" in done.out]
    assert owners["gw2"] == owners[dead]
    assert "devices=cpu:0,cpu:1" in done.out


def test_more_workers_than_devices_are_refused(project: Project) -> None:
    project.workers = ("-n3",)
    project.write(claim("p", "good"))
    done = project.run(DEVICES)
    assert done.code == 4
    assert "3 workers and 2 devices" in done.err
    assert project.served == []


def test_auto_means_a_worker_per_device(project: Project) -> None:
    project.workers = ("-nauto",)
    project.write(NOTE + claim("p", "good") + claim("q", "good"))
    done = project.run(DEVICES)
    assert done.code == 0
    assert "2 workers" in done.out


def test_without_workers_the_process_has_all_devices(project: Project) -> None:
    body = "assert lossguard_device == 'cpu:0,cpu:1'; lossguard.assert_lossless()"
    project.write(claim("p", "good", body=body).replace("(lossguard)", "(lossguard, lossguard_device)"))
    assert project.run(DEVICES).code == 0


def test_what_the_caller_hid_stays_hidden() -> None:
    assert parse_devices("auto", {"CUDA_VISIBLE_DEVICES": "GPU-b, GPU-c"}) == ("GPU-b", "GPU-c")
    assert parse_devices("auto", {"CUDA_VISIBLE_DEVICES": ""}) == ()
    assert parse_devices("auto", {"CUDA_VISIBLE_DEVICES": "-1"}) == ()


@pytest.mark.parametrize(("status", "expected"), [(0, ("GPU-1", "GPU-2")), (9, ())])
def test_auto_asks_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int, expected: tuple[str, ...]
) -> None:
    program = tmp_path / "nvidia-smi"
    program.write_text(f"#!/bin/sh\necho GPU-1\necho GPU-2\nexit {status}\n")
    program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    assert parse_devices("auto", {}) == expected


@pytest.mark.parametrize("text", ["a,,b", "a,b,a", ","])
def test_a_list_that_does_not_fit(text: str) -> None:
    with pytest.raises(UsageError, match="LG0807"):
        parse_devices(text, {})


def test_a_device_is_lent_once() -> None:
    specs = [Spec(), Spec()]
    assign(specs, ("GPU-1", "GPU-2"))
    assert specs[1].env == {
        "LOSSGUARD_DEVICE": "GPU-2",
        "CUDA_VISIBLE_DEVICES": "GPU-2",
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
    }
    ledger = Ledger()
    assert ledger.lend("gw0", specs[0]) == "GPU-1"
    with pytest.raises(UsageError, match="gw0 still has"):
        ledger.lend("gw2", specs[0])
    ledger.take_back("gw0")
    assert ledger.lend("gw2", specs[0]) == "GPU-1"
    assert ledger.lend("gw3", Spec()) is None


def test_a_worker_compares_what_it_was_lent() -> None:
    require_lease(None, {})
    require_lease("GPU-1", {"LOSSGUARD_DEVICE": "GPU-1"})
    with pytest.raises(UsageError, match="was lent GPU-1 and was started with GPU-2"):
        require_lease("GPU-1", {"LOSSGUARD_DEVICE": "GPU-2"})


def test_the_process_is_restricted_and_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-9")
    monkeypatch.delenv("LOSSGUARD_DEVICE", raising=False)
    before = restrict_this_process(["GPU-1"])
    assert parse_devices("auto", os.environ) == ("GPU-1",)
    restore(before)
    assert json.dumps(before) == json.dumps(
        {"LOSSGUARD_DEVICE": None, "CUDA_VISIBLE_DEVICES": "GPU-9", "CUDA_DEVICE_ORDER": None}
    )
    assert parse_devices("auto", os.environ) == ("GPU-9",)
    assert device_environment(["cpu:0"]) == {"LOSSGUARD_DEVICE": "cpu:0"}


def test_a_claim_that_needs_more_devices_than_its_process_has_is_red(project: Project) -> None:
    project.write(claim("p", "good").replace('"p"', '"p", gpus=2') + claim("q", "good").replace('"q"', '"q", gpus=1'))
    assert project.run(DEVICES).code == 0
    project.workers = ("-n2",)
    done = project.run(DEVICES)
    assert done.code == 1, done.out
    assert "1 pass, 0 fail, 1 inconclusive" in done.line
    assert "the claim needs 2 devices, and this process has 1 (cpu:" in done.out


def test_a_process_without_devices_has_none() -> None:
    assert lack(0, "auto", {"CUDA_VISIBLE_DEVICES": ""}) == ""
    assert lack(1, "auto", {"CUDA_VISIBLE_DEVICES": ""}) == "the claim needs 1 devices, and this process has 0 (none)"
    assert lack(2, "auto", {"CUDA_VISIBLE_DEVICES": "0,1", "LOSSGUARD_DEVICE": "0"}) != ""
    assert lack(2, "auto", {"CUDA_VISIBLE_DEVICES": "0,1"}) == ""
