"""The fleet of real servers, and the model that they serve."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from lossguard.models import default_model_path
from tests.servers.fleet import FOLDER, Fleet


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Servers in bfloat16 come last: by then others may end for them and need not start again."""
    items.sort(key=lambda item: "bf16" in item.name)


@pytest.fixture(scope="session")
def fleet(model: str, f32_gguf: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Fleet]:
    """Every real server, ended when the tests are."""
    servers = Fleet(model, f32_gguf, tmp_path_factory.mktemp("fleet"))
    try:
        yield servers
    finally:
        servers.close()


@pytest.fixture(scope="session")
def model() -> str:
    """SmolLM2-135M as a Hugging Face folder."""
    return str(default_model_path())


@pytest.fixture(scope="session")
def f32_gguf(model: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same weights for llama.cpp, in float32."""
    source = FOLDER / "llamacpp/source/llama.cpp"
    target = tmp_path_factory.mktemp("gguf") / "smollm2-f32.gguf"
    command = [sys.executable, str(source / "convert_hf_to_gguf.py"), model, "--outtype", "f32"]
    environment = {**os.environ, "PYTHONPATH": str(source / "gguf-py")}
    command += ["--outfile", str(target)]
    done = subprocess.run(command, capture_output=True, text=True, env=environment, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-4000:]
    return target
