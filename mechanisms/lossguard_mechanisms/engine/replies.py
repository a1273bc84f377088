"""Between sequences and the sampler: what each row asks for, and the log-probabilities that replies report."""

from __future__ import annotations

from collections.abc import Sequence as Several
from functools import partial

import torch
from torch import Tensor

from lossguard_mechanisms.engine.sampler import RowSampling, log_probabilities
from lossguard_mechanisms.engine.sequence import Sequence
from lossguard_mechanisms.trees.tree import Path


def row_sampling(sequence: Sequence, depth: int) -> RowSampling:
    """For the row of a node ``depth`` below the anchor; at a prompt's end the last prompt token stands for it."""
    job, index = sequence.job, len(sequence.served) + depth  # of the token in the reply
    sampling = job.request.sampling
    assert job.processing is None or depth == 0, "logits processors act on plain decoding only (options)"
    return RowSampling(
        params=sampling,
        key=job.key,
        position=sequence.num_prompt + index,
        banned_ids=job.banned_ids if index < sampling.min_tokens else (),
        process=None if job.processing is None else partial(job.processing, sequence.tokens),
    )


def report_logprobs(sequences: Several[Sequence], logits: Tensor, chosen: Tensor, path: Path | None) -> None:
    """Keep the log-probabilities of this step's tokens for those that asked for them.

    ``logits`` [B, N, V] and ``chosen`` [B, N] per node; ``path`` None: one node, on the path.
    """
    for row, sequence in enumerate(sequences):
        num_top = sequence.job.request.sampling.logprobs
        if not num_top:
            continue
        nodes = _nodes(path, row, logits)
        values = log_probabilities(logits[row, nodes])
        served = values.gather(1, chosen[row, nodes][:, None])[:, 0]
        top = values.topk(num_top, dim=-1)
        sequence.logprobs += zip(served.tolist(), top.indices.tolist(), top.values.tolist(), strict=True)


def _nodes(path: Path | None, row: int, logits: Tensor) -> Tensor:
    if path is None:
        return torch.zeros(1, dtype=torch.int64, device=logits.device)
    return path.nodes[row, : int(path.num_nodes[row])]
