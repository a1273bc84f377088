"""The W12 plug-ins in real servers on the CPU: found by entry points, and token for token what bf16 weights serve."""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import replace
from pathlib import Path

import platformdirs
import pytest

from lossguard.engines.servers.server_engine import ServerEngine
from lossguard.records import Request
from lossguard_mechanisms.weights.w12.convert import convert
from tests.servers.fleet import PYTHON_SERVER_GB, ROOT, Fleet, engine_of, sglang, vllm
from tests.servers.test_real_servers import requests_for

pytestmark = pytest.mark.servers
SYSTEMS = {"sglang": sglang, "vllm": vllm}
RAN = {
    # SGLang multiplies with a tied head as with an embedding, which stays in bf16; vLLM has a layer for it.
    "sglang": "120 layers, ",
    "vllm": "121 layers, ",
}
MAX_TOKENS = 8
HAVE_MULTIPLIED = "every one has multiplied"


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ``pip install --no-deps`` would put into a server's environment: this wheel and its entry points."""
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True, timeout=60)
    (wheel,) = folder.glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        archive.extractall(folder / "site")
    shutil.copytree(Path(platformdirs.__file__).parent, folder / "site/platformdirs")  # which pip would bring along
    return folder / "site"


@pytest.fixture(scope="module")
def converted(model: str, tmp_path_factory: pytest.TempPathFactory) -> str:
    """The model as ``lossguard w12 convert`` writes it."""
    folder = tmp_path_factory.mktemp("converted") / "model"
    convert(Path(model), folder)
    return str(folder)


def few_requests(model: str) -> list[Request]:
    """Two short ones: on a CPU every step decodes all weights."""
    return [
        replace(request, sampling=replace(request.sampling, max_tokens=MAX_TOKENS))
        for request in requests_for(model)[:2]
    ]


def replies(engine: ServerEngine, model: str) -> dict[str, tuple[int, ...]]:
    """What a server answers to a few requests, sent one after another."""
    return {request.id: output.ids for request in few_requests(model) for output in engine.serve([request])}


@pytest.mark.parametrize("name", SYSTEMS)
def test_tokens_are_those_of_bf16_weights(
    name: str, fleet: Fleet, installed: Path, model: str, converted: str, tmp_path: Path
) -> None:
    """The W12 server reads what convert has written; so both ways of loading go through the same conversion."""
    make = SYSTEMS[name]
    words = ("--load-format", "w12") if name == "vllm" else ()
    w12 = make("--quantization", "w12", *words, dtype="bfloat16")
    w12["env"] = {**w12["env"], "PYTHONPATH": str(installed)}
    fleet.make_room(PYTHON_SERVER_GB)
    engine = engine_of(w12, converted, tmp_path / "w12")
    try:
        found, told = replies(engine, model), engine.loaded_facts()["w12"]
    finally:
        engine.close()
    assert told.startswith(RAN[name])
    assert told.endswith(HAVE_MULTIPLIED)
    assert found == replies(fleet.engine(f"{name}-bf16"), model)
