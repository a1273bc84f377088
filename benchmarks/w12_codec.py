"""Speed of the W12 encoder and decoder on one core: ``python -m benchmarks.w12_codec [--model PATH] [--device cuda]``.

MB are those of the bf16 weights. Beside each speed stands its ratio to a plain copy of the same memory, measured in the
same minute, since other load on the machine disturbs both alike. Passes are interleaved, and each step's median counts.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import torch
from safetensors import safe_open
from torch import Tensor

from lossguard_mechanisms.weights.w12.bases import choose_bases
from lossguard_mechanisms.weights.w12.codec import decode, encode, pattern_matrix
from lossguard_mechanisms.weights.w12.shard_writer import digest_of

SHAPES = ((576, 576), (4096, 4096), (12288, 1024), (1024, 12288))
NUM_PASSES = 7


def synthetic(device: str) -> list[Tensor]:
    """Gaussian weights as a trained layer has them."""
    generator = torch.Generator().manual_seed(0)
    return [(torch.randn(*shape, generator=generator) * 0.02).to(torch.bfloat16).to(device) for shape in SHAPES]


def of_model(folder: Path, device: str) -> list[Tensor]:
    """All bf16 matrices of a model."""
    weights = []
    for path in sorted(folder.glob("*.safetensors")):
        with safe_open(path, framework="pt") as file:
            tensors = [file.get_tensor(name) for name in file.keys()]  # noqa: SIM118  (not a mapping)
        weights += [one.clone().to(device) for one in tensors if one.dtype == torch.bfloat16 and one.dim() > 1]
    return weights


def measure(weights: list[Tensor]) -> dict[str, float]:
    """Median seconds of each step over all weights."""
    coded = [encode(weight) for weight in weights]
    outs = [torch.empty_like(weight) for weight in weights]
    steps: dict[str, Callable[[], object]] = {
        "copy": lambda: [out.copy_(weight) for out, weight in zip(outs, weights, strict=True)],
        "choose bases": lambda: [choose_bases(pattern_matrix(weight)) for weight in weights],
        "encode": lambda: [encode(weight) for weight in weights],
        "decode": lambda: [decode(one, out) for one, out in zip(coded, outs, strict=True)],
        "checksum": lambda: [digest_of({"raw": weight.cpu()}) for weight in weights],
    }
    clock = time.perf_counter if weights[0].is_cuda else time.process_time
    times: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(NUM_PASSES):
        for name, step in steps.items():
            started = clock()
            step()
            if weights[0].is_cuda:
                torch.cuda.synchronize()
            times[name].append(clock() - started)
    same = all(
        torch.equal(out.view(torch.int16), one.view(torch.int16)) for out, one in zip(outs, weights, strict=True)
    )
    assert same, "a decoder that loses bits is not worth timing"
    return {name: statistics.median(values) for name, values in times.items()}


def main() -> None:
    """Print one line per step."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a folder with *.safetensors (default: Gaussian weights)")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--threads", type=int, default=1)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    weights = synthetic(given.device) if given.model is None else of_model(given.model, given.device)
    num_bytes = sum(2 * weight.numel() for weight in weights)
    seconds = measure(weights)
    print(f"{len(weights)} matrices, {num_bytes / 1e6:.0f} MB, {given.threads} thread(s), median of {NUM_PASSES}")
    for name, value in seconds.items():
        print(f"{name:>14}  {num_bytes / value / 1e6:8.0f} MB/s  {seconds['copy'] / value:6.3f} of a copy")


if __name__ == "__main__":
    main()
