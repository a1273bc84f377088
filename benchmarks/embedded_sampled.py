"""Sampled replies of plain decoding and of each drafter's chain with the same seeds: equal up to near-ties?

    python -m benchmarks.embedded_sampled --requests 216 --tokens 48 --temperature 0.7 --out fixtures/embedded-sampled

Every token is drawn with the number u that belongs to its request and position, so that two systems part only where
rounding moves an edge of the cumulative distribution across u. How near u lies to the interval of the token that was
served is measured with the target in float32: 0 where float32 draws that token too. A first difference is a near-tie if
both tokens lie as near as plain decoding's own tokens do at their worst; from there on replies have nothing in common.
"""

from __future__ import annotations

import argparse
import hashlib
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from safetensors.numpy import save_file
from torch import Tensor

from lossguard.engines.base import EngineSpec
from lossguard.records import FinishReason, Request, ServedOutput
from lossguard_mechanisms.engine.adapter import EmbeddedEngine
from lossguard_mechanisms.engine.counter_random import request_key, uniforms
from lossguard_mechanisms.engine.sampler import filtered_probabilities
from lossguard_mechanisms.replay.sources import Wanted, requests_for
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.rows import rows_of
from lossguard_mechanisms.targets.stateful import RecurrentSlots, SlotKeyValues, StatefulMixing
from lossguard_mechanisms.targets.weights import load_target

FIXTURES = Path(__file__).parents[1] / "fixtures"
TARGET = FIXTURES / "hybrid-target"
SYSTEMS: Mapping[str, Mapping[str, Any]] = {
    "ar": {"slots": 32},
    "dflash2": {"slots": 32, "drafter": str(FIXTURES / "hybrid-dflash2")},
    "dspark": {"slots": 8, "drafter": str(FIXTURES / "hybrid-dspark")},
    "eagle3": {"slots": 8, "drafter": str(FIXTURES / "hybrid-eagle3")},
}


def main() -> None:
    """Serve, compare, print one line per drafter, and keep replies and figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--requests", type=int, default=216)
    parser.add_argument("--tokens", type=int, default=48)
    parser.add_argument("--temperature", type=float, default=0.7)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    wanted = Wanted(
        sets=("default",),
        num_requests=arguments.requests,
        max_tokens=arguments.tokens,
        temperature=arguments.temperature,
        seed=arguments.seed,
    )
    requests, _ = requests_for(TARGET, wanted, longest=4096)
    replies = {name: served(requests, {"device": arguments.device, **options}) for name, options in SYSTEMS.items()}
    arguments.out.mkdir(parents=True, exist_ok=True)
    keep(arguments.out / "replies.safetensors", requests, replies)
    figures = compared(requests, replies)
    (arguments.out / "figures.json").write_text(json.dumps(figures, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(figures, indent=1))


def served(requests: Sequence[Request], options: Mapping[str, Any]) -> list[ServedOutput]:
    """Outputs in the order of the requests."""
    engine = EmbeddedEngine(EngineSpec(name="sampled", model_path=str(TARGET), options=dict(options)))
    outputs = {output.request_id: output for output in engine.serve(requests)}
    engine.close()
    return [outputs[request.id] for request in requests]


def keep(path: Path, requests: Sequence[Request], replies: Mapping[str, Sequence[ServedOutput]]) -> None:
    """NAME.ids one after the other and NAME.lengths (uint16), NAME.stopped (bool); prompt.keys of the numbers u."""
    columns = {"prompt": [request.prompt_ids for request in requests]}
    columns |= {name: [output.ids for output in outputs] for name, outputs in replies.items()}
    tensors: dict[str, Any] = {}
    for name, rows in columns.items():
        tensors[f"{name}.ids"] = np.concatenate([np.asarray(row) for row in rows]).astype(np.uint16)
        tensors[f"{name}.lengths"] = np.asarray([len(row) for row in rows], dtype=np.uint16)
    for name, outputs in replies.items():
        tensors[f"{name}.stopped"] = np.asarray([output.finish_reason is FinishReason.STOP for output in outputs])
    tensors["prompt.keys"] = np.asarray([_key(request) for request in requests], dtype=np.int64)
    save_file(tensors, path)
    print(f"{path}: {path.stat().st_size:,} bytes, sha256 {hashlib.sha256(path.read_bytes()).hexdigest()}")


def compared(requests: Sequence[Request], replies: Mapping[str, Sequence[ServedOutput]]) -> dict[str, Any]:
    """Shares of equal replies, and how near the numbers lie at the first differences."""
    target = load_target(TARGET, dtype=torch.float32, device=torch.device("cpu")).target
    own: list[float] = []
    found: dict[str, list[tuple[float, float]]] = {name: [] for name in replies if name != "ar"}
    for row, request in enumerate(requests):
        reply = replies["ar"][row].ids
        probabilities, numbers = drawn_from(target, request, reply)
        own += [distance(probabilities[at], numbers[at], token) for at, token in enumerate(reply)]
        for name, pairs in found.items():
            at = first_difference(reply, replies[name][row].ids)
            if at is not None:
                tokens = reply[at], replies[name][row].ids[at]
                pairs.append(tuple(distance(probabilities[at], numbers[at], token) for token in tokens))  # type: ignore[arg-type]
    figures: dict[str, Any] = {
        "requests": len(requests),
        "ar_tokens": len(own),
        "ar_tokens_that_float32_does_not_draw": sum(value > 0 for value in own),
        "ar_largest_distance": max(own),
        "systems": {},
    }
    for name, pairs in found.items():
        worst = [max(pair) for pair in pairs]
        figures["systems"][name] = {
            "equal_replies": 1.0 - len(pairs) / len(requests),
            "first_differences": len(pairs),
            "largest_distance": max(worst, default=0.0),
            "median_distance": float(np.median(worst)) if worst else 0.0,
            "farther_than_ar_at_its_worst": sum(value > max(own) for value in worst),
        }
    return figures


def drawn_from(target: Target, request: Request, reply: Sequence[int]) -> tuple[Tensor, Tensor]:
    """Probabilities [L, V] of the reply's positions in float32, and the number [L] of each."""
    ids = torch.tensor([*request.prompt_ids, *reply[:-1]])
    config, num_prompt = target.config, len(request.prompt_ids)
    rows = rows_of([0], [0], [len(ids)])
    mixing = StatefulMixing(
        rows,
        recurrent=RecurrentSlots(config, 1, dtype=torch.float32),
        key_values=SlotKeyValues(config, 1, len(ids), dtype=torch.float32),
    )
    with torch.inference_mode():
        hidden = target(ids, rows.positions, mixing).hidden[num_prompt - 1 :]
        probabilities = filtered_probabilities(target.logits(hidden), [request.sampling] * len(hidden))
    keys = torch.full((len(reply),), _key(request))
    return probabilities, uniforms(keys, num_prompt + torch.arange(len(reply)))


def distance(probabilities: Tensor, number: Tensor, token: int) -> float:
    """How far ``number`` lies from the interval of ``token`` in the cumulative distribution, 0 inside."""
    cumulative = probabilities.cumsum(-1, dtype=torch.float64) / probabilities.sum(dtype=torch.float64)
    upper = float(cumulative[token])
    lower = float(cumulative[token - 1]) if token else 0.0
    return max(lower - float(number), float(number) - upper, 0.0)


def first_difference(one: Sequence[int], other: Sequence[int]) -> int | None:
    """Where two replies part; None if they are equal."""
    pairs = enumerate(zip(one, other, strict=False))
    at = next((at for at, (mine, yours) in pairs if mine != yours), None)
    assert at is not None or len(one) == len(other), "a reply that goes on where another ended differs before"
    return at


def _key(request: Request) -> int:
    return request_key(request.sampling.seed or 0, request.id, request.repeat_id)


if __name__ == "__main__":
    main()
