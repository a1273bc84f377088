"""Forced scores of the replies in fixtures/sglang-sampled, kept small beside them: what made ``scores.safetensors``.

The first 64 tokens of every reply, scored whole by the torch scorer. The transform's bounds are kept in steps of
1 / 65535, the other columns in float16.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load, save

from lossguard.models import resolve_model
from lossguard.records import FinishReason, ForcedScores, Request, SamplingParams, ServedOutput
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.torch_scorer import TorchScorerSpec, create_torch_scorer

FOLDER = Path(__file__).parents[1] / "fixtures" / "sglang-sampled"
ARMS = ("stock", "ngram")
KEPT_TOKENS = 64
SAMPLING = SamplingParams(max_tokens=256, temperature=1.0, stop_ids=(2,))


def main() -> int:
    """Score and write."""
    tensors = load((FOLDER / "replies.safetensors").read_bytes())
    prompts, *arms = (_rows(tensors, name) for name in ("prompt", *ARMS))
    jobs = [_job(at, prompt, replies) for at, (prompt, *replies) in enumerate(zip(prompts, *arms, strict=True))]
    scorer = create_torch_scorer(TorchScorerSpec(model_path=str(resolve_model("smollm2", Path.cwd()))))
    kept: dict[str, NDArray[np.generic]] = {}
    for name, scores in zip(ARMS, scorer.score(jobs), strict=True):
        kept |= {f"{name}.{key}": column for key, column in small(scores).items()}
    (FOLDER / "scores.safetensors").write_bytes(save(kept))
    return 0


def small(scores: ForcedScores) -> dict[str, NDArray[np.generic]]:
    """What is kept of the first tokens of every reply."""
    position = np.arange(scores.num_tokens) - np.repeat(scores.offsets[:-1], np.diff(scores.offsets))
    kept = position < KEPT_TOKENS
    columns: dict[str, NDArray[np.generic]] = {
        "lengths": np.minimum(np.diff(scores.offsets), KEPT_TOKENS).astype(np.uint16)
    }
    for name in ("pit_low", "pit_high"):
        columns[name] = np.round(getattr(scores, name)[kept] * 65535).astype(np.uint16)
    for name in ("sampled_logprob", "entropy", "surprisal_variance"):
        columns[name] = getattr(scores, name)[kept].astype(np.float16)
    return columns


def _job(at: int, prompt: tuple[int, ...], replies: list[tuple[int, ...]]) -> ScoringJob:
    name = f"r{at:03d}"
    request = Request(id=name, prompt_ids=prompt, sampling=SAMPLING, set="default", cluster=name)
    outputs = tuple(ServedOutput(request_id=name, ids=ids, finish_reason=FinishReason.LENGTH) for ids in replies)
    return ScoringJob(request=request, outputs=outputs)


def _rows(tensors: dict[str, NDArray[np.generic]], name: str) -> list[tuple[int, ...]]:
    ends = np.cumsum(tensors[f"{name}.lengths"].astype(np.int64))
    return [tuple(row.tolist()) for row in np.split(tensors[f"{name}.ids"], ends[:-1])]


if __name__ == "__main__":
    sys.exit(main())
