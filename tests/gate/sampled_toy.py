"""The toy stack at temperature > 0: an engine that draws, a scorer that gives distributions."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from lossguard.engines.base import Capabilities
from lossguard.records import FinishReason, ForcedScores, Request, SamplingParams, ServedOutput
from lossguard.scoring.sampled_columns import sampled_columns, stack_sampling
from tests.gate.toy import STOP_ID, VOCAB_SIZE, Logits, ToyEngine, ToyScorer

SAMPLING = frozenset({"temperature", "top_p", "seed", "stop_ids"})


def serve_exactly(logits: Logits, sampling: SamplingParams) -> Logits:
    """Probabilities [V] after temperature and top-p."""
    scaled = logits / sampling.temperature
    weights = np.exp(scaled - scaled.max())
    weights /= weights.sum()
    order = np.argsort(-weights, kind="stable")
    before = np.cumsum(weights[order]) - weights[order]
    weights[order[before >= sampling.top_p]] = 0.0
    return np.asarray(weights / weights.sum())


@dataclass
class SampledEngine(ToyEngine):
    """Draws each token from ``law`` of its noisy logits; another ``draws`` draws others."""

    law: Callable[[Logits, SamplingParams], Logits] = serve_exactly
    draws: int = 0

    @property
    def capabilities(self) -> Capabilities:
        return replace(super().capabilities, sampling=SAMPLING)

    def _reply(self, request: Request, row: int, num_rows: int) -> ServedOutput:
        if request.sampling.is_greedy:
            return super()._reply(request, row, num_rows)
        generator = np.random.default_rng([zlib.crc32(request.id.encode()), self.draws])
        ids = [*request.prompt_ids]
        reply: list[int] = []
        while len(reply) < request.sampling.max_tokens and (not reply or reply[-1] != STOP_ID):
            law = self.law(self._served_logits(ids, request, row, num_rows), request.sampling)
            reply.append(min(int(np.searchsorted(np.cumsum(law), generator.random())), VOCAB_SIZE - 1))
            ids.append(reply[-1])
        stopped = reply[-1] == STOP_ID
        return ServedOutput(
            request_id=request.id,
            ids=tuple(reply),
            finish_reason=FinishReason.STOP if stopped else FinishReason.LENGTH,
            stop_reason=STOP_ID if stopped else None,
        )


class SampledScorer(ToyScorer):
    """The toy scorer with the columns of sampled requests."""

    def _arm(self, pairs: Sequence[tuple[Request, ServedOutput]]) -> ForcedScores:
        scores = super()._arm(pairs)
        if all(request.sampling.is_greedy for request, _ in pairs):
            return scores
        logits: list[Logits] = []
        served: list[int] = []
        kinds: list[int] = []
        for index, (request, output) in enumerate(pairs):
            ids = list(request.prompt_ids)
            for token in output.ids:
                logits.append(self.target.logits(ids))
                served.append(token)
                kinds.append(index)
                ids.append(token)
        sampling = stack_sampling([request.sampling for request, _ in pairs], torch.tensor(kinds), torch.device("cpu"))
        rows = torch.from_numpy(np.array(logits, dtype=np.float32))
        columns = sampled_columns(rows, torch.tensor(served), sampling)
        arrays: dict[str, Any] = {name: column.numpy() for name, column in columns.items()}
        return replace(scores, **arrays)
