"""What a session knows of the machine that it times."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from lossguard.devices.names import parse_devices
from lossguard.host_facts import host_facts
from lossguard.stages.timing.session import _fingerprint
from tests.gate.toy import write_model


def test_an_engine_cannot_speak_for_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Noise belongs to the machine that the arms run on, whatever an engine says of another."""
    monkeypatch.setenv("LOSSGUARD_CACHE", str(tmp_path / "cache"))
    write_model(tmp_path / "model")
    told = {"engine": {"kind": "toy", "host": {"cpu.model": "elsewhere"}}, "factory": {}}
    workspace: Any = SimpleNamespace(target_path=tmp_path / "model")
    system: Any = SimpleNamespace(model=None, options={})
    probed: Any = SimpleNamespace(hellos={"stock": {"fingerprint": told}})
    found = _fingerprint(workspace, system, probed, "stock", parse_devices(("cpu:0",)))
    assert host_facts()[0].items() <= found.identity.items()
    assert found.identity["engine.reported_host.cpu.model"] == "elsewhere"
