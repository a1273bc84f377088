"""Speed and memory of the torch scorer: ``python -m benchmarks.scoring [--model PATH] [--device cuda]``.

Beside lm-eval's HFLM (log-likelihood on token ids at its fastest batch size) and beside the headless forward, which
nothing that scores with this model can beat. Runs are interleaved and repeated, and each system's best run counts, so
that other load on the machine disturbs all alike. ``--shape qwen3-8b`` takes random weights of that shape and needs
neither files nor lm-eval.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from torch import nn

from benchmarks.scoring_memory import cpu_peaks, cuda_peak
from benchmarks.scoring_systems import Run, headless_run, hflm_run, logits_run, scorer_run
from benchmarks.scoring_work import Work, WorkSize, greedy_work

SHAPES: dict[str, dict[str, Any]] = {
    "qwen3-8b": {
        "hidden_size": 4096,
        "intermediate_size": 12288,
        "num_hidden_layers": 36,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "vocab_size": 151936,
        "tie_word_embeddings": False,
    },
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 16,
        "vocab_size": 2048,
        "tie_word_embeddings": False,
    },
}
HFLM_BATCH_SIZES = (1, 8, 32, 64)  # "auto" detects anew in every call, and ends at 64 unless memory runs out
Clock = Callable[[], float]
SHARING, SINGLE, HEADLESS, HFLM = "scorer, sharing", "scorer, single pass", "headless forward", "HFLM"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One figure with what it has to reach."""

    name: str
    value: float
    limit: float
    at_most: bool = False

    def line(self) -> str:
        """One row of the table."""
        met = self.value <= self.limit if self.at_most else self.value >= self.limit
        sign = "<=" if self.at_most else ">="
        return f"  {self.name:<58} {self.value:6.2f}  {sign} {self.limit:<5.2f} {'met' if met else 'MISSED'}"


def main() -> None:
    """Parse, measure, print."""
    options = _parser().parse_args()
    if options.threads:
        torch.set_num_threads(options.threads)
    device = torch.device(options.device)
    model, tokenizer, path = _load(options, device)
    size = WorkSize(num_requests=_num_requests(options))
    work = greedy_work(model, int(model.config.vocab_size), size)  # type: ignore[union-attr, arg-type]
    budget = options.tokens or (2048 if device.type == "cpu" else 16384)
    budget = max(budget, work.num_tokens()) if options.tokens else budget
    clock = time.perf_counter if options.clock == "wall" else time.process_time
    runs = _runs(model, work, budget)
    print(_heading(options, work, budget))
    runs[HFLM] = _rival(model, tokenizer, work, clock) if tokenizer is not None else logits_run(model, budget)
    seconds = _measure(runs, work, options.rounds, clock)
    bars = _speed_bars(work, seconds, options.shape)
    bars += _memory_bars(options, path, runs, work)
    print("\n".join(["", *(bar.line() for bar in bars)]))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.scoring", description=__doc__)
    parser.add_argument("--model", help="model folder (default: the built-in SmolLM2)")
    parser.add_argument("--shape", choices=sorted(SHAPES), help="random weights of this shape instead of a model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int)
    parser.add_argument("--requests", type=int, default=48, help="two-arm requests of 64 + 96 tokens")
    parser.add_argument("--tokens", type=int, help="as many requests as fill one pass of this many tokens")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--clock", choices=("wall", "cpu"), default="wall", help="cpu: for a machine under other load")
    return parser


def _num_requests(options: argparse.Namespace) -> int:
    size = WorkSize(num_requests=0)
    per_request = 2 * (size.prompt_tokens + size.reply_tokens - 1)
    return max(1, round(options.tokens / per_request)) if options.tokens else int(options.requests)


def _load(options: argparse.Namespace, device: torch.device) -> tuple[nn.Module, Any, str]:
    if options.shape:
        config = transformers.Qwen3Config(**SHAPES[options.shape], max_position_embeddings=4096)
        torch.manual_seed(0)
        with device:
            model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
        return model.eval(), None, ""
    if options.model is None:
        from lossguard.models import default_model_path

        options.model = str(default_model_path())
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model, local_files_only=True)
    model = transformers.AutoModelForCausalLM.from_pretrained(options.model, dtype="auto", local_files_only=True)
    placed: nn.Module = nn.Module.to(model, device)
    return placed.eval(), tokenizer, options.model


def _runs(model: nn.Module, work: Work, budget: int) -> dict[str, Run]:
    sharing, scorer = scorer_run(model, budget, share=True)
    runs = {SHARING: sharing, SINGLE: scorer_run(model, budget, share=False)[0], HEADLESS: headless_run(model, budget)}
    for name, value in scorer.fingerprint().items():
        print(f"  {name}: {value}")
    return runs


def _rival(model: nn.Module, tokenizer: Any, work: Work, clock: Clock) -> Run:
    longest = max(len(prompt) + len(reply) for prompt, reply in work.sequences())
    candidates = {batch: hflm_run(model, tokenizer, batch, longest) for batch in HFLM_BATCH_SIZES}
    return _fastest(candidates, work, clock)


def _fastest(candidates: dict[int, Run], work: Work, clock: Clock) -> Run:
    """HFLM at the batch size that is fastest on this work (the better of two runs each)."""
    seconds = {batch: min(_time(run, work, clock) for _ in range(2)) for batch, run in candidates.items()}
    for batch, value in seconds.items():
        print(f"  HFLM, batch size {batch}: {work.num_tokens() / value:.0f} tokens/s")
    return candidates[min(seconds, key=lambda batch: seconds[batch])]


def _measure(runs: dict[str, Run], work: Work, rounds: int, clock: Clock) -> dict[str, float]:
    """Best seconds of each system; the systems take turns."""
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    for run in runs.values():
        run(work.part(min(4, len(work.prompts))))
    for _ in range(rounds):
        for name, run in runs.items():
            seconds[name].append(_time(run, work, clock))
    for name, values in seconds.items():
        every = " ".join(f"{value:.3f}" for value in values)
        print(f"  {name:<22} {work.num_tokens() / min(values):9.0f} tokens/s   seconds: {every}")
    return {name: min(values) for name, values in seconds.items()}


def _time(run: Run, work: Work, clock: Clock) -> float:
    start = clock()
    run(work)
    if torch.cuda.is_available():
        torch.cuda.synchronize()
    return clock() - start


def _speed_bars(work: Work, seconds: dict[str, float], shape: str | None) -> list[Bar]:
    gain = work.num_tokens() / work.num_unique_tokens()
    rival = "HFLM" if shape is None else "all logits and log-softmax"
    headless = 0.75 if shape is None else 0.85
    return [
        Bar(name=f"sharing: speed over {rival}", value=seconds[HFLM] / seconds[SHARING], limit=0.9 * gain),
        Bar(name=f"single pass: speed over {rival}", value=seconds[HFLM] / seconds[SINGLE], limit=1.0),
        Bar(
            name="single pass: share of the headless forward's speed",
            value=seconds[HEADLESS] / seconds[SINGLE],
            limit=headless,
        ),
    ]


def _memory_bars(options: argparse.Namespace, path: str, runs: dict[str, Run], work: Work) -> list[Bar]:
    if options.device.startswith("cuda"):
        peaks = {name: cuda_peak(runs[name], work) for name in (SHARING, SINGLE, HFLM)}
    elif path:
        peaks = cpu_peaks(path, work.part(6), torch.get_num_threads())
    else:
        return []
    for name, value in peaks.items():
        print(f"  {name:<22} {value / 2**20:9.0f} MiB above weights and head, one batch")
    names = (SHARING, SINGLE)
    return [
        Bar(name=f"{name}: memory over HFLM's", value=peaks[name] / peaks[HFLM], limit=0.25, at_most=True)
        for name in names
    ]


def _heading(options: argparse.Namespace, work: Work, budget: int) -> str:
    return (
        f"{options.shape or options.model} on {options.device}, {torch.get_num_threads()} threads: "
        f"{len(work.prompts)} requests x 2 arms, {work.num_tokens()} tokens, {work.num_unique_tokens()} unique, "
        f"{budget} tokens a pass"
    )


if __name__ == "__main__":
    main()
