"""Step times of the embedded engine at real sizes on one accelerator, with replayed targets.

    python -m benchmarks.embedded_gpu --shapes qwen3-8b,qwen3.5-4b --batches 1,8,32 --compiled --seconds 150 --out DIR

Weights are random and tokens come from a recording (``--recording``), or from a made-up table in which each drafted
token is right with the chance ``--acceptance``: step times are real, replies mean nothing. Plain decoding and chain
speculation run in turn, block by block, on the same weights; every block begins and ends with all sequences alive. The
byte floor of a plain step is what it must read and write (weights, keys and values, recurrent states twice) at the read
bandwidth that this program measures first.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity
from torch.profiler import profile as torch_profile

from benchmarks.replayed_setting import CAPACITY, DTYPE, NUM_PROMPT, Choice, Setting, make_setting
from benchmarks.replayed_tables import made_up_table, recorded_table
from lossguard.records import Request
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.replayed import LABEL, ReplayTable
from lossguard_mechanisms.engine.sequence import Job
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.trees.names import CHAIN, POLICIES

PLAIN_STEPS, CHAIN_STEPS = 24, 12  # of a block
NUM_PROFILED, NUM_KERNELS_SHOWN = 4, 32


class Side:
    """An engine with all its sequences alive, stepped in blocks."""

    def __init__(self, core: EngineCore, requests: list[Request]) -> None:
        self._core = core
        for request in requests:
            core.add(Job(request=request, key=0, stop_ids=frozenset()))
        core.step()  # all prompts at once
        core.step()  # captures a graph

    def block(self, num_steps: int) -> tuple[float, int]:
        """(seconds, tokens that all sequences gained) of some steps; IndexError where a reply would end."""
        before = self._num_tokens()
        begun = time.perf_counter()
        for _ in range(num_steps):
            if self._core.step():
                raise IndexError("a reply ended inside a block: record longer ones")
        return time.perf_counter() - begun, self._num_tokens() - before

    def _num_tokens(self) -> int:
        return sum(len(sequence.served) for sequence in self._core.running)


def main() -> None:
    """Print one line per shape and batch size, and keep all of them as JSON."""
    arguments = _arguments()
    begun = time.perf_counter()
    torch.manual_seed(0)
    device = torch.device(arguments.device)
    rate = read_bandwidth(device)
    _say(begun, f"{_device_name(device)}, torch {torch.__version__}: reads {rate / 1e12:.2f} TB/s. {LABEL}")
    results: list[dict[str, Any]] = []
    for shape in arguments.shapes.split(","):
        setting = make_setting(_choice(shape, arguments), device)
        _say(begun, f"{shape}: made; {setting.acceleration}")
        for batch in (int(part) for part in arguments.batches.split(",")):
            if time.perf_counter() - begun > arguments.seconds:
                _say(begun, f"{shape} batch {batch}: left out, the time is up")
                continue
            results.append(measure(setting, batch, rate, arguments))
            _say(begun, json.dumps(results[-1]))
            _save(arguments.out, results)
        del setting
        torch.compiler.reset()
        torch.cuda.empty_cache()


def measure(setting: Setting, batch: int, rate: float, arguments: argparse.Namespace) -> dict[str, Any]:
    """Step times, tokens per step and the ratio of the two sides' tokens per second."""
    table = _table(setting, batch, arguments)
    requests = setting.requests(table)
    plain = Side(setting.core(table, batch, None), requests)
    chain = Side(setting.core(table, batch, setting.chain), requests)
    tree = None if setting.tree is None else Side(setting.core(table, batch, setting.tree), requests)
    plain_blocks, chain_blocks, tree_blocks = [], [], []
    for _ in range(arguments.rounds):
        plain_blocks.append(plain.block(PLAIN_STEPS))
        chain_blocks.append(chain.block(CHAIN_STEPS))
        tree_blocks += [] if tree is None else [tree.block(CHAIN_STEPS)]
    if arguments.profile:
        profile("plain", plain)
        profile("chain", chain)
        if tree is not None:
            profile("tree", tree)
    plain_ms = statistics.median(seconds / PLAIN_STEPS for seconds, _ in plain_blocks) * 1e3
    chain_ms = statistics.median(seconds / CHAIN_STEPS for seconds, _ in chain_blocks) * 1e3
    ratios = [
        (chain_tokens / chain_seconds) / (plain_tokens / plain_seconds)
        for (plain_seconds, plain_tokens), (chain_seconds, chain_tokens) in zip(plain_blocks, chain_blocks, strict=True)
    ]
    context = NUM_PROMPT + arguments.rounds * PLAIN_STEPS // 2
    floor_ms = step_bytes(setting.target, batch, context) / rate * 1e3
    return {
        "shape": setting.shape,
        "batch": batch,
        "nodes": 0 if setting.tree is None else setting.tree.policy.num_nodes - 1,
        "temperature": setting.temperature,
        "plain_step_ms": round(plain_ms, 3),
        "floor_ms": round(floor_ms, 3),
        "floor_share": round(floor_ms / plain_ms, 3),
        "chain_step_ms": round(chain_ms, 3),
        "tokens_per_step": round(sum(n for _, n in chain_blocks) / (arguments.rounds * CHAIN_STEPS * batch), 3),
        "speed_up": round(statistics.median(ratios), 3),
        "speed_up_range": [round(min(ratios), 3), round(max(ratios), 3)],
        "tokens_from": "recording" if arguments.recording else f"made up, acceptance {arguments.acceptance}",
        **_tree_figures(tree_blocks, chain_blocks, plain_blocks, batch),
    }


Block = tuple[float, int]  # seconds, tokens


def _tree_figures(tree: list[Block], chain: list[Block], plain: list[Block], batch: int) -> dict[str, Any]:
    """The tree's own step, and its tokens per second over the chain's and over plain decoding's, block by block."""
    if not tree:
        return {}
    rates = [[tokens / seconds for seconds, tokens in blocks] for blocks in (tree, chain, plain)]
    over_chain, over_plain = ([a / b for a, b in zip(rates[0], other, strict=True)] for other in rates[1:])
    return {
        "tree_step_ms": round(statistics.median(seconds / CHAIN_STEPS for seconds, _ in tree) * 1e3, 3),
        "tree_tokens_per_step": round(sum(tokens for _, tokens in tree) / (len(tree) * CHAIN_STEPS * batch), 3),
        "tree_over_chain": round(statistics.median(over_chain), 3),
        "tree_over_chain_range": [round(min(over_chain), 3), round(max(over_chain), 3)],
        "tree_over_plain": round(statistics.median(over_plain), 3),
    }


def profile(name: str, side: Side) -> None:
    """Print the kernels in which a few steps of one side spend their time, milliseconds and calls per step."""
    activities = [ProfilerActivity.CPU, *([ProfilerActivity.CUDA] if torch.cuda.is_available() else [])]
    with torch_profile(activities=activities) as taken:
        side.block(NUM_PROFILED)
    kernels = [event for event in taken.key_averages() if event.self_device_time_total > 0]
    kernels.sort(key=lambda event: -event.self_device_time_total)
    total_ms = sum(event.self_device_time_total for event in kernels) / NUM_PROFILED / 1e3
    print(f"  {name}: {total_ms:.2f} ms of kernels a step", flush=True)
    for event in kernels[:NUM_KERNELS_SHOWN]:
        milliseconds = event.self_device_time_total / NUM_PROFILED / 1e3
        print(f"    {milliseconds:7.3f} ms {event.count / NUM_PROFILED:6.0f} x  {event.key[:100]}", flush=True)


def _choice(shape: str, arguments: argparse.Namespace) -> Choice:
    if arguments.policy != CHAIN and arguments.recording is None:
        raise SystemExit(f"--policy {arguments.policy} needs --recording: a made-up table has no candidates")
    return Choice(
        shape=shape,
        num_drafts=arguments.drafts,
        policy=arguments.policy,
        num_nodes=arguments.nodes,
        is_compiled=arguments.compiled,
        temperature=arguments.temperature,
    )


def read_bandwidth(device: torch.device) -> float:
    """Bytes per second of a sum over far more memory than the caches hold; the best of thirty, the first ones cold."""
    data = torch.ones(2**30 if device.type == "cuda" else 2**22, dtype=torch.float32, device=device)
    best = 0.0
    for _ in range(30):
        _synchronise(device)
        begun = time.perf_counter()
        data.sum()
        _synchronise(device)
        best = max(best, data.nbytes / (time.perf_counter() - begun))
    return best


def step_bytes(target: Target, batch: int, context: int) -> int:
    """Least bytes of a plain step: every weight once, all keys and values, each state read and written."""
    config = target.config
    weights = sum(parameter.nbytes for parameter in target.parameters())
    if not config.tie_word_embeddings:
        weights -= target.embedding.weight.nbytes  # a few rows of it
    per_token = 2 * len(config.attention_layers) * config.num_key_value_heads * config.head_dim * DTYPE.itemsize
    states = 0
    if config.delta is not None:
        delta = config.delta
        per_layer = delta.num_value_heads * delta.key_dim * delta.value_dim * 4
        states = 2 * len(config.delta_layers) * per_layer
    return weights + batch * (context * per_token + states)


def _table(setting: Setting, batch: int, arguments: argparse.Namespace) -> ReplayTable:
    length = CAPACITY - NUM_PROMPT - setting.num_surplus
    if arguments.recording is not None:
        return recorded_table(
            arguments.recording,
            batch=batch,
            length=length,
            num_drafts=arguments.drafts,
            device=setting.device,
            has_lattices=setting.tree is not None,
        )
    return made_up_table(
        batch=batch,
        length=length,
        num_drafts=arguments.drafts,
        acceptance=arguments.acceptance,
        vocab_size=setting.target.config.vocab_size,
        device=setting.device,
    )


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="step times of the embedded engine with replayed targets")
    parser.add_argument("--shapes", default="qwen3-8b,qwen3.5-4b")
    parser.add_argument("--batches", default="1,8,32")
    parser.add_argument("--drafts", type=int, default=7)
    parser.add_argument("--policy", default=CHAIN, choices=POLICIES, help="trees to time beside the chain")
    parser.add_argument("--nodes", type=int, default=16, help="drafted tokens of a tree")
    parser.add_argument("--temperature", type=float, default=0.0, help="over 0 every step draws its tokens")
    parser.add_argument("--acceptance", type=float, default=0.8)
    parser.add_argument("--recording", type=Path, default=None)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=150.0)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--profile", action="store_true", help="also print where steps spend their time")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args()


def _device_name(device: torch.device) -> str:
    return torch.cuda.get_device_name(device) if device.type == "cuda" else device.type


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _say(begun: float, text: str) -> None:
    print(f"[{time.perf_counter() - begun:6.1f} s] {text}", flush=True)


def _save(folder: Path | None, results: list[dict[str, Any]]) -> None:
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "embedded_gpu.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
