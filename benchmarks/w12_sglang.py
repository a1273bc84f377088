"""Plain decoding in SGLang on one GPU: W12 beside bf16 weights, in two servers that take turns.

    python -m benchmarks.w12_sglang --out DIR [--model DIR] [--batches 1,32] [--rounds 6] [--profile]

Without ``--model`` the model is of Qwen3-8B's shape with random weights (``--load-format dummy``). The environment must
hold SGLang and lossguard with its entry points. Tokens per second are those by which a long reply exceeds a short one,
over the difference of their times as this client measures them, so that prompts do not count; sides alternate, and the
ratio is that of neighbours. Each server has the same budget of memory, whose pool of keys and values SGLang prints.
Profiles list the kernels of a few steps by name and grid.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections import defaultdict
from pathlib import Path
from typing import Any

QWEN3_8B = {
    "architectures": ["Qwen3ForCausalLM"],
    "model_type": "qwen3",
    "vocab_size": 151936,
    "hidden_size": 4096,
    "intermediate_size": 12288,
    "num_hidden_layers": 36,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "hidden_act": "silu",
    "rms_norm_eps": 1e-6,
    "rope_theta": 1000000,
    "max_position_embeddings": 40960,
    "tie_word_embeddings": False,
    "attention_bias": False,
    "bos_token_id": 151643,
    "eos_token_id": 151645,
    "torch_dtype": "bfloat16",
}
FEWER, MORE, NUM_PROMPT = 16, 272, 128
BUDGET = 0.42  # of the memory that the first server finds
NUM_PROFILED = 8
HAS_MEMORY, READY = "Memory pool end", "The server is fired up"


class Server:
    """One SGLang server of this run."""

    def __init__(self, name: str, port: int, fraction: float, arguments: argparse.Namespace) -> None:
        self.name, self.fraction = name, fraction
        out: Path = arguments.out
        self._url = f"http://127.0.0.1:{port}"
        self._log = out / f"{name}.log"
        words = [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model-path",
            str(arguments.model),
            "--port",
            str(port),
        ]
        words += ["--dtype", "bfloat16", "--attention-backend", "triton", "--sampling-backend", "pytorch"]
        words += ["--skip-tokenizer-init", "--context-length", "4096", "--max-running-requests", "32"]
        words += ["--cuda-graph-max-bs-decode", "32", "--disable-prefill-cuda-graph", "--disable-radix-cache"]
        words += ["--mem-fraction-static", f"{fraction:.4f}", *arguments.server_words]
        if name == "w12":
            words += ["--quantization", "w12"]
        with self._log.open("w") as stream:
            self._process = subprocess.Popen(  # noqa: S603  (this run's own words)
                words, stdout=stream, stderr=subprocess.STDOUT, start_new_session=True, cwd=out
            )

    def wait(self, text: str, deadline: float) -> None:
        """Until its log has ``text``. Raises RuntimeError if it ends or the time is up."""
        while text not in self.log():
            if self._process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError(f"{self.name} is not up:\n" + self.log()[-6000:])
            time.sleep(0.5)

    def log(self) -> str:
        """What it has said."""
        return self._log.read_text(encoding="utf-8", errors="replace")

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The reply to a request, or None if it is empty or no JSON."""
        data = json.dumps(body).encode()
        headers = {"Content-Type": "application/json"}
        asked = urllib.request.Request(self._url + path, data=data, headers=headers)  # noqa: S310
        with urllib.request.urlopen(asked, timeout=300) as reply:  # noqa: S310  (this machine's own server)
            text = reply.read()
        return json.loads(text) if text[:1] in (b"{", b"[") else None

    def generate(self, prompts: list[list[int]], num_tokens: int) -> tuple[float, list[list[int]]]:
        """(seconds, reply tokens of each prompt)."""
        sampling = {"temperature": 0, "max_new_tokens": num_tokens, "ignore_eos": True}
        begun = time.perf_counter()
        replies = self.post("/generate", {"input_ids": prompts, "sampling_params": sampling})
        seconds = time.perf_counter() - begun
        found = [reply["output_ids"] for reply in replies]
        if any(len(reply) != num_tokens for reply in found):
            raise RuntimeError(f"{self.name} gave {[len(reply) for reply in found]} tokens instead of {num_tokens}")
        return seconds, found

    def facts(self) -> dict[str, Any]:
        """Memory and its pool of keys and values, by its own log."""
        log = self.log()
        memory = [float(text) for text in re.findall(r"Load weight begin.*?avail mem=([\d.]+)", log)]
        weights = [float(text) for text in re.findall(r"Load weight end.*mem usage=([\d.]+) GB", log)]
        tokens = [int(text) for text in re.findall(r"max_total_num_tokens=(\d+)", log)]
        found = re.findall(r"lossguard w12: .*", log)
        return {
            "budget_gb": round(memory[0] * self.fraction, 3) if memory else None,
            "weights_gb": weights[0] if weights else None,
            "pool_tokens": tokens[0] if tokens else None,
            "says": found[0] if found else None,
        }

    def stop(self) -> None:
        """End it and its processes."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, 9)
        self._process.wait()


def main() -> None:
    """Start, measure in pairs, profile; every result is printed and kept at once."""
    arguments = _arguments()
    deadline = time.monotonic() + arguments.seconds
    arguments.out.mkdir(parents=True, exist_ok=True)
    servers: dict[str, Server] = {}
    results: dict[str, Any] = {}
    free_at_first = _free_memory()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # so that servers are ended however this ends
    try:
        for port, name in enumerate(arguments.sides.split(","), start=30100):
            fraction = BUDGET * free_at_first / _free_memory()
            servers[name] = Server(name, port, fraction, arguments)
            servers[name].wait(HAS_MEMORY, deadline)  # so that the next one sees what is left
        for name, server in servers.items():
            server.wait(READY, deadline)
            keep(arguments.out, results, f"{name} up", server.facts() | {"seconds_left": _left(deadline)})
        for batch in (int(part) for part in arguments.batches.split(",")):
            keep(arguments.out, results, f"batch {batch}", pairs(servers, batch, arguments.rounds, deadline))
        for batch in (int(part) for part in arguments.batches.split(",")):
            for name, server in servers.items():
                if arguments.profile and time.monotonic() < deadline - 15:
                    keep(arguments.out, results, f"profile {name} {batch}", profile(server, batch, arguments.out))
    finally:
        for server in servers.values():
            server.stop()


def pairs(servers: dict[str, Server], batch: int, rounds: int, deadline: float) -> dict[str, Any]:
    """Tokens per second of all sides in turn, and the ratio of the first to the second."""
    prompts = prompts_of(batch)
    replies = {name: server.generate(prompts, FEWER)[1] for name, server in servers.items()}  # warm, too
    rates: dict[str, list[float]] = defaultdict(list)
    for number in range(rounds):
        if time.monotonic() > deadline - 30 and number > 1:
            break
        order = list(servers.items())
        for name, server in order if number % 2 == 0 else reversed(order):
            fewer, more = server.generate(prompts, FEWER)[0], server.generate(prompts, MORE)[0]
            rates[name].append(batch * (MORE - FEWER) / (more - fewer))
    found: dict[str, Any] = {name: [round(rate, 1) for rate in values] for name, values in rates.items()}
    found["median"] = {name: round(statistics.median(values), 1) for name, values in rates.items()}
    if len(rates) > 1:
        first, second = rates.values()
        ratios = [one / other for one, other in zip(first, second, strict=True)]
        found["ratio"] = round(statistics.median(ratios), 4)
        found["ratio_range"] = [round(min(ratios), 4), round(max(ratios), 4)]
        one, other = replies.values()
        same = sum(a == b for row, column in zip(one, other, strict=True) for a, b in zip(row, column, strict=True))
        found["equal_tokens"] = f"{same} of {batch * FEWER}"
    return found


def profile(server: Server, batch: int, out: Path) -> dict[str, Any]:
    """Kernels of a few decode steps: by name and grid, calls and microseconds a step."""
    folder = out / f"trace-{server.name}-{batch}"
    folder.mkdir(exist_ok=True)
    running = threading.Thread(target=server.generate, args=(prompts_of(batch), 400))
    running.start()
    time.sleep(0.6)
    asked = {"output_dir": str(folder), "num_steps": NUM_PROFILED, "activities": ["GPU"]}
    server.post("/start_profile", asked)
    running.join()
    for _ in range(40):
        if found := sorted(folder.glob("*.json.gz")):
            break
        time.sleep(0.25)
    else:
        return {"problem": "no trace was written"}
    time.sleep(1)
    table = kernels(found[0])
    (out / f"kernels-{server.name}-{batch}.json").write_text(json.dumps(table, indent=0) + "\n", encoding="utf-8")
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()
    return {"kernels": len(table["kernels"]), "span_us": table["span_us"], "busy_us": table["busy_us"]}


def kernels(trace: Path) -> dict[str, Any]:
    """A trace's kernels by name and grid: count, total and median microseconds."""
    with gzip.open(trace, "rt") as stream:
        events = [event for event in json.load(stream)["traceEvents"] if event.get("cat") == "kernel"]
    groups: dict[tuple[str, str], list[float]] = defaultdict(list)
    for event in events:
        groups[event["name"][:160], str(event["args"].get("grid"))].append(event["dur"])
    rows = [
        {
            "name": name,
            "grid": grid,
            "count": len(times),
            "us": round(sum(times), 1),
            "median": statistics.median(times),
        }
        for (name, grid), times in groups.items()
    ]
    begins, ends = [event["ts"] for event in events], [event["ts"] + event["dur"] for event in events]
    rows.sort(key=lambda row: -float(str(row["us"])))
    span, busy = max(ends) - min(begins), sum(event["dur"] for event in events)
    return {"span_us": round(span, 1), "busy_us": round(busy, 1), "kernels": rows}


def prompts_of(batch: int) -> list[list[int]]:
    """Random prompts, the same for every side."""
    drawn = random.Random(batch)
    return [[drawn.randrange(1000, 30000) for _ in range(NUM_PROMPT)] for _ in range(batch)]


def keep(out: Path, results: dict[str, Any], key: str, value: Any) -> None:
    """Print a result and write all of them."""
    results[key] = value
    print(key, json.dumps(value), flush=True)
    (out / "w12_sglang.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


def _free_memory() -> float:
    """MiB that are free on the first GPU."""
    command = ["nvidia-smi", "--query-gpu=memory.free", "--format=csv,noheader,nounits"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)  # noqa: S603
    return float(done.stdout.split()[0])


def _left(deadline: float) -> float:
    return round(deadline - time.monotonic(), 1)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="plain decoding in SGLang: W12 beside bf16 weights")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--sides", default="w12,bf16")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--seconds", type=float, default=400.0)
    parsed = parser.parse_args()
    parsed.out = parsed.out.resolve()
    parsed.server_words = []
    if parsed.model is None:
        parsed.model = parsed.out / "qwen3-8b-shape"
        parsed.model.mkdir(parents=True, exist_ok=True)
        (parsed.model / "config.json").write_text(json.dumps(QWEN3_8B), encoding="utf-8")
        parsed.server_words = ["--load-format", "dummy"]
    return parsed


if __name__ == "__main__":
    main()
