"""The timing gate's rule on replayed targets, with both sides in one process on one accelerator.

    python -m benchmarks.timing.replayed_gate --shape qwen3-8b --stock chain --candidate tree

Requests are served whole, one at a time, in ABBA blocks; stock against a second engine of stock gives the noise, and
``lossguard.timing.rules.faster`` decides, as in ``lossguard time``. What a process of its own for each side and the
watching of the machine would add is not there (``replayed.toml`` has them); compilation and weights are paid for once.
"""

from __future__ import annotations

import argparse
import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.replayed_setting import SIDES, Choice, make_setting
from benchmarks.replayed_tables import recorded_table
from lossguard.records import Request
from lossguard.timing.base import CANDIDATE, STOCK, PairTimes
from lossguard.timing.noise import describe_noise, noise_profile
from lossguard.timing.rules import faster
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.replayed import LABEL
from lossguard_mechanisms.engine.sequence import Job
from lossguard_mechanisms.engine.shapes import TARGETS
from lossguard_mechanisms.trees.names import BEST_FIRST, TREES

RECORDING = Path("fixtures/lattices/dflash2.lattice.safetensors")
NUM_NOISE_PAIRS = 8


def serve(core: EngineCore, request: Request) -> tuple[float, tuple[int, ...]]:
    """(seconds, ids) of one request, alone."""
    begun = time.perf_counter()
    core.add(Job(request=request, key=0, stop_ids=frozenset(), sent_ns=0))
    while core.has_work:
        for ended in core.step():
            return time.perf_counter() - begun, tuple(ended.served)
    raise AssertionError("a request ends")


def campaign(stock: EngineCore, candidate: EngineCore, requests: list[Request], num_pairs: int) -> PairTimes:
    """Both sides in turns, pair by pair the other one first. Their replies are the same."""
    seconds = np.zeros((num_pairs, 2, 2, len(requests)))
    cores = {STOCK: stock, CANDIDATE: candidate}
    replies: dict[int, list[tuple[int, ...]]] = {}
    for pair in range(num_pairs):
        for run in range(2):
            order = (STOCK, CANDIDATE) if (pair + run) % 2 == 0 else (CANDIDATE, STOCK)
            for arm in order:
                served = [serve(cores[arm], request) for request in requests]
                seconds[pair, run, arm] = [took for took, _ in served]
                replies[arm] = [ids for _, ids in served]
            assert replies[STOCK] == replies[CANDIDATE], "both sides replay the same"
    return PairTimes(
        seconds=seconds,
        device=np.zeros((num_pairs, 2, 2), dtype=np.int64),
        num_tokens=np.full(seconds.shape, requests[0].sampling.max_tokens, dtype=np.int64),
        strata=("bench",) * len(requests),
        metric="latency",
        design="one-device",
    )


def measured(arguments: argparse.Namespace) -> dict[str, Any]:
    """The verdict with what it rests on."""
    device = torch.device(arguments.device)
    torch.manual_seed(0)
    choice = Choice(
        shape=arguments.shape,
        num_drafts=arguments.drafts,
        policy=arguments.policy,
        num_nodes=arguments.nodes,
        is_compiled=arguments.compiled,
        temperature=arguments.temperature,
    )
    setting = make_setting(choice, device)
    table = recorded_table(
        arguments.recording,
        batch=arguments.requests,
        length=arguments.tokens + choice.num_drafts,
        num_drafts=choice.num_drafts,
        device=device,
        has_lattices=True,
    )
    requests = setting.requests(table, arguments.tokens)
    names = (arguments.stock, arguments.stock, arguments.candidate)
    stock, again, candidate = (setting.core(table, 1, setting.sides[name]) for name in names)
    for core in (stock, again, candidate):
        serve(core, requests[0])
    noise = replace(noise_profile(campaign(stock, again, requests, NUM_NOISE_PAIRS)), keeps_launches=True)
    found = faster(campaign(stock, candidate, requests, arguments.pairs), noise, asked=arguments.faster_than - 1.0)
    estimate = found.estimate
    return {
        "label": LABEL,
        "device_name": torch.cuda.get_device_name(device) if device.type == "cuda" else device.type,
        "torch": torch.__version__,
        **{key: str(value) if isinstance(value, Path) else value for key, value in vars(arguments).items()},
        "verdict": found.verdict.value,
        "times_as_fast": round(1.0 + estimate.gain, 4),
        "bounds": [round(1.0 + estimate.gain_lower, 4), round(1.0 + estimate.gain_upper, 4)],
        "threshold": round(1.0 + found.threshold, 4),
        "noise": {key: describe_noise(noise)[key] for key in ("rms", "upper_95")},
        "kept_launches": estimate.variance_parts["kept_launches"],
        "reasons": list(found.reasons),
    }


def parsed(words: list[str] | None = None) -> argparse.Namespace:
    """Options, of the command line if ``words`` are not given."""
    parser = argparse.ArgumentParser(description="the timing gate's rule on replayed targets")
    parser.add_argument("--shape", default="qwen3-8b", choices=tuple(TARGETS))
    parser.add_argument("--stock", default="chain", choices=SIDES)
    parser.add_argument("--candidate", default="tree", choices=SIDES)
    parser.add_argument("--faster-than", type=float, default=1.0, help="a factor; 1: any gain over the noise's own bar")
    parser.add_argument("--policy", default=BEST_FIRST, choices=TREES)
    parser.add_argument("--nodes", type=int, default=16)
    parser.add_argument("--drafts", type=int, default=7)
    parser.add_argument("--temperature", type=float, default=0.0, help="of the recording; over 0 every step draws")
    parser.add_argument("--requests", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--compiled", action="store_true")
    parser.add_argument("--recording", type=Path, default=RECORDING)
    parser.add_argument("--device", default="cuda:0")
    parser.add_argument("--out", type=Path, default=None)
    return parser.parse_args(words)


def main() -> None:
    """Measure, print, and keep the result as JSON with ``--out``."""
    arguments = parsed()
    text = json.dumps(measured(arguments), indent=1)
    print(text)
    if arguments.out is not None:
        arguments.out.write_text(text + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
