"""Real servers by name: how each is launched, and which of them run at a time.

``LOSSGUARD_SERVERS`` is the folder of their environments (``vllm``, ``sglang``, ``llamacpp``), as ``make test-servers``
installs them. A server that is not there fails its tests: skipping them would look like passing.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from lossguard.engines.base import EngineSpec
from lossguard.engines.registry import engine_factory
from lossguard.engines.servers.server_engine import ServerEngine
from lossguard.models import _packaged_gguf

ROOT = Path(__file__).parents[2]
FOLDER = Path(os.environ.get("LOSSGUARD_SERVERS", "LOSSGUARD_SERVERS-is-not-set"))
SPECULATION = '{"method":"ngram","num_speculative_tokens":4,"prompt_lookup_max":4,"prompt_lookup_min":2}'
CONTEXT: Final = 2048
SLOT: Final = 256
"""Positions that llama.cpp keeps for each request under way: more than any request here has."""
CONCURRENCY: Final = 34
"""A step reads all weights, for few requests as for many; 204 requests are six times as many."""

CHUNK: Final = 48
"""Tokens of a prefill chunk of the server with a small pool; some prompts are longer."""


PASSIVE: Final = {"OMP_WAIT_POLICY": "passive"}
"""A thread that waits for the others leaves its core to them: spinning, two threads on two cores stall whenever a third
process wants one, and idle servers do many times a second."""


def vllm(
    *arguments: str, dtype: str = "float32", context: int = CONTEXT, concurrency: int = CONCURRENCY
) -> dict[str, Any]:
    """vLLM on the CPU."""
    words = [str(FOLDER / "vllm/bin/vllm"), "serve", "{model}", "--port", "{port}", "--dtype", dtype, "--enforce-eager"]
    words += ["--max-model-len", str(context), "--max-num-seqs", str(concurrency), "--max-logprobs", "20"]
    words += ["--distributed-executor-backend", "uni", *arguments]
    # Without "multiprocessing" the model runs in the engine's process: one process less that imports all of vLLM.
    env: dict[str, Any] = {"VLLM_NO_USAGE_STATS": 1, "VLLM_CPU_KVCACHE_SPACE": 1, "VLLM_ENABLE_V1_MULTIPROCESSING": 0}
    env |= {"HF_HUB_OFFLINE": 1, **PASSIVE}
    return {"engine": "vllm", "launch": words, "env": env, "concurrency": concurrency}


def sglang(*arguments: str, dtype: str = "float32") -> dict[str, Any]:
    """SGLang on the CPU, with its kernels replaced by a stand-in."""
    words = [str(FOLDER / "sglang/bin/python"), "-m", "sglang.launch_server", "--model-path", "{model}"]
    words += ["--port", "{port}", "--device", "cpu", "--dtype", dtype, "--attention-backend", "torch_native"]
    words += ["--sampling-backend", "pytorch", "--disable-overlap-schedule", "--disable-cuda-graph"]
    words += ["--skip-server-warmup", "--context-length", str(CONTEXT), "--max-total-tokens", "8192"]
    words += ["--max-running-requests", str(CONCURRENCY), "--sleep-on-idle", *arguments]
    env = {"HF_HUB_OFFLINE": 1, "SGLANG_USE_CPU_ENGINE": 1, **PASSIVE}
    return {"engine": "sglang", "launch": words, "env": env, "concurrency": CONCURRENCY}


def llamacpp(gguf: Path, *arguments: str) -> dict[str, Any]:
    """llama-server with a model file of its own, a slot per request under way, and all of it in float32."""
    words = [str(FOLDER / "llamacpp/build/bin/llama-server"), "-m", str(gguf), "--port", "{port}", "-t", "2"]
    words += [
        "-c",
        str(CONCURRENCY * SLOT),
        "-np",
        str(CONCURRENCY),
        "--no-webui",
        "-fa",
        "off",
        "-ctk",
        "f32",
        "-ctv",
        "f32",
    ]
    return {"engine": "llamacpp", "launch": [*words, *arguments], "env": PASSIVE, "concurrency": CONCURRENCY}


SMALL_POOL: Final = ("--num-gpu-blocks-override", "16", "--block-size", "32", "--max-num-batched-tokens", str(CHUNK))
"""Sixteen blocks for sixteen requests that grow to two each: some are preempted. Long prompts are read in chunks."""
SGLANG_NGRAM: Final = (
    *("--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", "4"),
    *("--speculative-ngram-max-bfs-breadth", "1"),
)
LLAMA_NGRAM: Final = (
    *("--spec-type", "ngram-simple", "--spec-ngram-simple-size-n", "3"),
    *("--spec-ngram-simple-size-m", "6"),
)


def launch_table(name: str, f32_gguf: Path) -> dict[str, Any]:
    """How a server of the fleet is launched."""
    tables = {
        "vllm": lambda: vllm(),
        "vllm-ngram": lambda: vllm("--speculative-config", SPECULATION, *SMALL_POOL, context=448, concurrency=16),
        "vllm-bf16": lambda: vllm(dtype="bfloat16"),
        "sglang": lambda: sglang(),
        "sglang-bf16": lambda: sglang(dtype="bfloat16"),
        "sglang-ngram": lambda: sglang(*SGLANG_NGRAM),
        "llamacpp": lambda: llamacpp(f32_gguf),
        "llamacpp-ngram": lambda: llamacpp(f32_gguf, *LLAMA_NGRAM),
        "llamacpp-q4": lambda: llamacpp(_packaged_gguf()),
    }
    return tables[name]()


PYTHON_SERVER_GB: Final = 4.0
"""Measured of vLLM (3.6) and of SGLang (3.9) with this model in float32."""
LLAMACPP_GB: Final = 0.8
MOST_GB: Final = 19.0
"""For the servers of the first tests, four in Python and three of llama.cpp, beside the tests and their scorer."""


def size_of(name: str) -> float:
    """Memory that a server of the fleet takes, in GB."""
    return LLAMACPP_GB if name.startswith("llamacpp") else PYTHON_SERVER_GB


class Fleet:
    """Real servers by name, launched when asked for; those unused for longest end when memory is wanted for others."""

    def __init__(self, model: str, f32_gguf: Path, folder: Path) -> None:
        self._model, self._gguf, self._folder = model, f32_gguf, folder
        self._engines: dict[str, ServerEngine] = {}  # the one used last comes last

    def engine(self, name: str) -> ServerEngine:
        """The engine that launched a server, which is healthy now."""
        engine = self._kept(name)
        engine.start()
        return engine

    def launch(self, names: Sequence[str]) -> None:
        """Start several, two at a time: each computes on one core while it imports its packages."""
        with ThreadPoolExecutor(max_workers=2) as pool:
            for url in [pool.submit(engine.start) for engine in map(self._kept, names)]:
                url.result()

    def _kept(self, name: str) -> ServerEngine:
        engine = self._engines.pop(name, None)
        if engine is None:
            self.make_room(size_of(name))
            engine = engine_of(launch_table(name, self._gguf), self._model, self._folder / name)
        self._engines[name] = engine
        return engine

    def make_room(self, size: float) -> None:
        """End servers until one of ``size`` GB fits beside the others."""
        while self._engines and size + sum(map(size_of, self._engines)) > MOST_GB:
            self._engines.pop(next(iter(self._engines))).close()

    def table(self, name: str) -> dict[str, Any]:
        """A system that attaches to it. A url says nothing of the dtype behind it."""
        table = launch_table(name, self._gguf)
        kept = {key: value for key, value in table.items() if key not in ("launch", "env")}
        dtype = "bfloat16" if name.endswith("bf16") else "float32"
        return {**kept, "url": self.engine(name).start(), "logit_dtype": dtype}

    def close(self) -> None:
        """End them all."""
        for engine in self._engines.values():
            engine.close()


def engine_of(table: dict[str, Any], model: str, folder: Path) -> ServerEngine:
    """The engine of a system's table."""
    options = {key: value for key, value in table.items() if key != "engine"}
    spec = EngineSpec(name=table["engine"], model_path=model, options=options, folder=folder)
    engine = engine_factory(table["engine"])(spec)
    assert isinstance(engine, ServerEngine)
    return engine
