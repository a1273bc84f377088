"""Real servers on this machine, as ``make test-servers`` installs them.

``LOSSGUARD_SERVERS`` is the folder of their environments (``vllm``, ``sglang``, ``llamacpp``). A server that is not
there fails its tests: skipping them would look like passing.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lossguard.models import default_model_path

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("LOSSGUARD_SERVERS", ROOT / ".servers"))
SPECULATION = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}'
CONTEXT = "2048"


def vllm(*arguments: str, dtype: str = "float32") -> dict[str, Any]:
    """vLLM on the CPU."""
    words = [str(FOLDER / "vllm/bin/vllm"), "serve", "{model}", "--port", "{port}", "--dtype", dtype, "--enforce-eager"]
    words += ["--max-model-len", CONTEXT, "--max-num-seqs", "8", "--max-logprobs", "20", *arguments]
    env = {"VLLM_NO_USAGE_STATS": 1, "VLLM_CPU_KVCACHE_SPACE": 1, "VLLM_CPU_OMP_THREADS_BIND": "0-1"}
    return {"engine": "vllm", "launch": words, "env": {"HF_HUB_OFFLINE": 1, **env}}


def sglang(*arguments: str, dtype: str = "float32") -> dict[str, Any]:
    """SGLang on the CPU, with its kernels replaced by a stand-in."""
    words = [str(FOLDER / "sglang/bin/python"), "-m", "sglang.launch_server", "--model-path", "{model}"]
    words += ["--port", "{port}", "--device", "cpu", "--dtype", dtype, "--attention-backend", "torch_native"]
    words += ["--sampling-backend", "pytorch", "--disable-overlap-schedule", "--disable-cuda-graph"]
    words += ["--skip-server-warmup", "--context-length", CONTEXT, "--max-total-tokens", "8192"]
    words += ["--max-running-requests", "8", *arguments]
    return {"engine": "sglang", "launch": words, "env": {"HF_HUB_OFFLINE": 1, "SGLANG_USE_CPU_ENGINE": 1}}


def llamacpp(gguf: Path, *arguments: str, logprobs: int = 1) -> dict[str, Any]:
    """llama-server with a model file of its own, a slot per request under way, and all of it in float32."""
    words = [str(FOLDER / "llamacpp/build/bin/llama-server"), "-m", str(gguf), "--port", "{port}", "-t", "2"]
    words += ["-c", str(4 * int(CONTEXT)), "-np", "4", "--no-webui", "-fa", "off", "-ctk", "f32", "-ctv", "f32"]
    return {"engine": "llamacpp", "launch": [*words, *arguments], "concurrency": 4, "logprobs": logprobs}


NGRAM = {
    "vllm": vllm("--speculative-config", SPECULATION),
    "sglang": sglang(
        *("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4"),
        *("--speculative-ngram-max-bfs-breadth", "1"),
    ),
}
LLAMA_NGRAM = ("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3", "--spec-ngram-simple-size-m", "6")


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
