"""Plain decoding in the embedded engine on one GPU: W12 beside bf16 weights of one shape, block by block in turn.

    python -m benchmarks.w12_embedded --shape qwen3-8b --batches 1,32 [--compiled] [--rounds 8] [--profile] --out DIR

Weights are random and the same on both sides, and steps are CUDA graphs; with ``--compiled`` what lies between products
is compiled on both sides. Prints the step time of each side, the ratio of neighbouring blocks, and with ``--profile``
the kernels of a step by name.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from torch.profiler import ProfilerActivity, profile

from lossguard.records import Request, SamplingParams
from lossguard_mechanisms.engine.acceleration import Acceleration, kernels_fit
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.decoding import DecodeStage
from lossguard_mechanisms.engine.fused_target import FusedTarget
from lossguard_mechanisms.engine.graphs import DecodeGraphs
from lossguard_mechanisms.engine.memory import Memory, MemorySizes
from lossguard_mechanisms.engine.model import ServedModel
from lossguard_mechanisms.engine.sequence import Job
from lossguard_mechanisms.engine.shapes import TARGETS, target_of_shape
from lossguard_mechanisms.engine.w12_target import convert_target
from lossguard_mechanisms.targets.decoder import Target

PAGE_SIZE, CAPACITY, NUM_PROMPT = 64, 1024, 128
STEPS, NUM_PROFILED = 24, 4


def core_of(target: Target, batch: int, *, is_compiled: bool) -> EngineCore:
    """An engine of ``batch`` slots; on CUDA with graphs."""
    weight = target.embedding.weight
    has_kernels, _ = kernels_fit(target.config, dtype=weight.dtype, device=weight.device)
    sizes = MemorySizes(
        num_slots=batch,
        num_pages=batch * (CAPACITY // PAGE_SIZE),
        page_size=PAGE_SIZE,
        capacity=CAPACITY,
        num_surplus=1,
        dtype=weight.dtype,
        device=weight.device,
        acceleration=Acceleration(has_kernels=has_kernels, is_compiled=is_compiled),
    )
    memory = Memory(target.config, sizes, drafter=None)
    stage = DecodeStage(target.config, memory, None)
    model: ServedModel = FusedTarget(target) if is_compiled else target
    graphs = DecodeGraphs(model, memory, stage) if weight.is_cuda else None
    if graphs is not None:
        graphs.capture(batch)
    return EngineCore(model, memory, prefill_chunk=batch * NUM_PROMPT, stage=stage, graphs=graphs)


def start(core: EngineCore, vocab_size: int, batch: int) -> None:
    """All sequences alive, their prompts read."""
    generator = torch.Generator().manual_seed(2)
    for number, prompt in enumerate(torch.randint(0, vocab_size, (batch, NUM_PROMPT), generator=generator).tolist()):
        sampling = SamplingParams(max_tokens=CAPACITY - NUM_PROMPT - 2, ignore_eos=True)
        name = f"r{number}"
        request = Request(id=name, prompt_ids=tuple(prompt), sampling=sampling, set="bench", cluster=name)
        core.add(Job(request=request, key=0, stop_ids=frozenset()))
    core.step()
    core.step()


def block(core: EngineCore, num_steps: int) -> float:
    """Milliseconds of a step, over some steps."""
    begun = time.perf_counter()
    for _ in range(num_steps):
        if core.step():
            raise IndexError("a reply ended inside a block")
    return (time.perf_counter() - begun) / num_steps * 1e3


def kernels(core: EngineCore) -> list[dict[str, Any]]:
    """Kernels of a step: name, calls and microseconds a step."""
    with profile(activities=[ProfilerActivity.CUDA]) as taken:
        block(core, NUM_PROFILED)
    found = [event for event in taken.key_averages() if event.self_device_time_total > 0]
    found.sort(key=lambda event: -event.self_device_time_total)
    return [
        {
            "name": event.key[:140],
            "calls": event.count / NUM_PROFILED,
            "us": round(event.self_device_time_total / NUM_PROFILED, 2),
        }
        for event in found
    ]


def measure(targets: dict[str, Target], batch: int, parsed: argparse.Namespace) -> dict[str, Any]:
    """Step times of both sides in turn."""
    cores = {name: core_of(target, batch, is_compiled=parsed.compiled) for name, target in targets.items()}
    for name, core in cores.items():
        start(core, targets[name].config.vocab_size, batch)
    times: dict[str, list[float]] = {name: [] for name in cores}
    for number in range(parsed.rounds):
        order = list(cores.items())
        for name, core in order if number % 2 == 0 else reversed(order):
            times[name].append(block(core, STEPS))
    ratios = [plain / coded for plain, coded in zip(times["bf16"], times["w12"], strict=True)]
    found: dict[str, Any] = {
        "batch": batch,
        "compiled": parsed.compiled,
        "step_ms": {name: round(statistics.median(values), 4) for name, values in times.items()},
        "ratio": round(statistics.median(ratios), 4),
        "ratio_range": [round(min(ratios), 4), round(max(ratios), 4)],
    }
    if parsed.profile:
        found["kernels"] = {name: kernels(core) for name, core in cores.items()}
    return found


def main() -> None:
    """Make both targets, measure, print."""
    parser = argparse.ArgumentParser(description="plain decoding in the embedded engine: W12 beside bf16 weights")
    parser.add_argument("--shape", default="qwen3-8b")
    parser.add_argument("--batches", default="1,32")
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--profile", action="store_true")
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, required=True)
    parsed = parser.parse_args()
    device = torch.device(parsed.device)
    targets = {}
    for name in ("w12", "bf16"):
        torch.manual_seed(0)
        targets[name] = target_of_shape(TARGETS[parsed.shape], dtype=torch.bfloat16, device=device)
        if name == "w12":
            convert_target(targets[name])
    results = []
    for batch in (int(part) for part in parsed.batches.split(",")):
        results.append(measure(targets, batch, parsed))
        print(json.dumps({key: value for key, value in results[-1].items() if key != "kernels"}), flush=True)
        parsed.out.mkdir(parents=True, exist_ok=True)
        (parsed.out / "w12_embedded.json").write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
