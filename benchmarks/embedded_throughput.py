"""Tokens per second of the embedded engine beside transformers' ``generate`` with the same weights, in one process.

    python -m benchmarks.embedded_throughput --batches 8,64 --new-tokens 128 --rounds 3

Both sides serve the same prompts with the same number of new tokens (no end token), one after the other in turn, so
that a slow minute of the machine hits both. ``--ragged`` gives each request a length of its own: ``generate`` then
runs every batch to its longest reply, as it has to. Wall time by this program's clock counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig

from lossguard.engines.base import EngineSpec
from lossguard.models import default_model_path
from lossguard.records import Request, SamplingParams
from lossguard_mechanisms.engine.adapter import EmbeddedEngine

VOCAB_SIZE = 4096  # every model here has at least as many
NUM_RAGGED_BATCHES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """What both sides serve."""

    name: str
    requests: tuple[Request, ...]
    batch_size: int  # of generate, and slots of the engine

    @property
    def num_tokens(self) -> int:
        """Tokens that were asked for."""
        return sum(request.sampling.max_tokens for request in self.requests)


def main() -> None:
    """Print one line per load."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", type=Path, default=None)
    parser.add_argument("--batches", default="8,64")
    parser.add_argument("--new-tokens", type=int, default=128)
    parser.add_argument("--prompt-tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--ragged", action="store_true")
    parser.add_argument("--cpu-time", action="store_true", help="CPU seconds, for a busy machine; with --threads 1")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    folder = arguments.model or default_model_path()
    model: Any = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True).eval()
    no_defaults: Any = GenerationConfig
    model.generation_config = no_defaults()  # or its end token would cut replies short
    for batch in (int(part) for part in arguments.batches.split(",")):
        load = ragged_load(batch, arguments) if arguments.ragged else even_load(batch, arguments)
        _compare(load, model, folder, arguments)


def even_load(batch: int, arguments: argparse.Namespace) -> Load:
    """One batch of equal prompts and replies."""
    sizes = [(arguments.prompt_tokens, arguments.new_tokens)] * batch
    return Load(name=f"batch {batch}", requests=_requests(sizes), batch_size=batch)


def ragged_load(batch: int, arguments: argparse.Namespace) -> Load:
    """Eight batches' worth of requests, replies of 8 to twice ``--new-tokens`` (log-uniform), in random order."""
    count = NUM_RAGGED_BATCHES * batch
    generator = torch.Generator().manual_seed(17)
    uniform = torch.rand(count, generator=generator)
    lengths = (8 * (arguments.new_tokens / 4.0) ** uniform.double()).round().long().tolist()
    prompts = torch.randint(8, 2 * arguments.prompt_tokens, (count,), generator=generator).tolist()
    sizes = list(zip(prompts, lengths, strict=True))
    return Load(name=f"ragged, batch {batch}", requests=_requests(sizes), batch_size=batch)


def _requests(sizes: Sequence[tuple[int, int]]) -> tuple[Request, ...]:
    generator = torch.Generator().manual_seed(1)
    requests = []
    for index, (prompt, reply) in enumerate(sizes):
        ids = torch.randint(100, VOCAB_SIZE, (prompt,), generator=generator).tolist()
        sampling = SamplingParams(max_tokens=reply, ignore_eos=True)
        requests.append(
            Request(id=f"r{index}", prompt_ids=tuple(ids), sampling=sampling, set="bench", cluster=f"r{index}")
        )
    return tuple(requests)


def _compare(load: Load, model: Any, folder: Path, arguments: argparse.Namespace) -> None:
    clock = time.process_time if arguments.cpu_time else time.perf_counter
    spec = EngineSpec(name="bench", model_path=str(folder), options={"slots": load.batch_size})
    engine = EmbeddedEngine(spec)
    sides: dict[str, Callable[[], int]] = {
        "generate": lambda: _generate(model, load),
        "embedded": lambda: sum(len(output.ids) for output in engine.serve(load.requests)),
    }
    short = Load(name="warm", requests=_requests([(8, 4)] * load.batch_size), batch_size=load.batch_size)
    _generate(model, short)
    list(engine.serve(short.requests))
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(arguments.rounds):
        for name, run in sides.items():
            begun = clock()
            num_tokens = run()
            seconds[name].append(clock() - begun)
            assert num_tokens == load.num_tokens, f"{name} gave {num_tokens} tokens of {load.num_tokens}"
    ratios = [slow / fast for slow, fast in zip(seconds["generate"], seconds["embedded"], strict=True)]
    rates = {name: load.num_tokens / statistics.median(values) for name, values in seconds.items()}
    print(
        f"{load.name}: {len(load.requests)} requests, {load.num_tokens} tokens; "
        f"generate {rates['generate']:.0f} tokens/s, "
        f"embedded {rates['embedded']:.0f} tokens/s, ratio {statistics.median(ratios):.2f} "
        f"({', '.join(f'{ratio:.2f}' for ratio in ratios)})",
        flush=True,
    )
    engine.close()


def _generate(model: Any, load: Load) -> int:
    """Batches in the order given, padded on the left, each to its longest reply; returns the tokens asked for."""
    total = 0
    for at in range(0, len(load.requests), load.batch_size):
        batch = load.requests[at : at + load.batch_size]
        longest = max(len(request.prompt_ids) for request in batch)
        ids = torch.tensor([[0] * (longest - len(request.prompt_ids)) + list(request.prompt_ids) for request in batch])
        mask = torch.tensor(
            [[0] * (longest - len(request.prompt_ids)) + [1] * len(request.prompt_ids) for request in batch]
        )
        wanted = max(request.sampling.max_tokens for request in batch)
        config: Any = GenerationConfig
        settings = config(max_new_tokens=wanted, do_sample=False, use_cache=True, disable_compile=True)
        with torch.inference_mode():
            model.generate(ids, attention_mask=mask, generation_config=settings)
        total += sum(request.sampling.max_tokens for request in batch)
    return total


if __name__ == "__main__":
    main()
