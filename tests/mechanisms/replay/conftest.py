"""What several tests of recordings share."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[3]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


@pytest.fixture(autouse=True)
def one_thread() -> None:
    """Small models are faster so, and sums come in one order."""
    torch.set_num_threads(1)


@pytest.fixture
def lattice_command(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    """The entry point as the installed package declares it, also where only the source tree is there."""
    folder = tmp_path_factory.mktemp("site")
    metadata = folder / "lattice_commands-0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: lattice-commands\nVersion: 0\n")
    target = PROJECT["entry-points"]["lossguard.commands"]["lattice"]
    (metadata / "entry_points.txt").write_text(f"[lossguard.commands]\nlattice = {target}\n")
    monkeypatch.syspath_prepend(folder)
