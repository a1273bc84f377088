"""The toy scorer with parameters replayed by the torch scorer's own code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from lossguard.records import ForcedScores, Request, ServedOutput
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.columns import offsets_of
from lossguard.scoring.replayed_parameters import (
    CONVENTIONS,
    MASKED,
    ReplayedRequest,
    RowContext,
    replay,
    replayed_request,
)
from tests.gate.toy import VOCAB_SIZE, ToyScorer


@dataclass
class ReplayingScorer(ToyScorer):
    """Exact scores of the toy target under each request's parameters."""

    def score(self, jobs: Sequence[ScoringJob], *, progress: Callable[[int], None] | None = None) -> list[ForcedScores]:
        """As the toy scorer, with the three columns of replayed parameters where a request has any."""
        plain = super().score(jobs, progress=progress)
        asked = [replayed_request(job.request, CONVENTIONS["vllm"], None) for job in jobs]
        if not any(asked):
            return plain
        arms = [[job.outputs[arm] for job in jobs] for arm in range(len(plain))]
        requests = [job.request for job in jobs]
        return [self._changed(scores, requests, asked, arm) for scores, arm in zip(plain, arms, strict=True)]

    def _changed(
        self,
        plain: ForcedScores,
        requests: Sequence[Request],
        asked: Sequence[ReplayedRequest | None],
        outputs: Sequence[ServedOutput],
    ) -> ForcedScores:
        everywhere = np.ones(plain.num_tokens, dtype=np.bool_)
        scores = replace(
            plain,
            gap=plain.gap.copy(),
            best_id=plain.best_id.copy(),
            best_logit=plain.best_logit.copy(),
            rank=plain.rank.copy(),
            top_ids=plain.top_ids.copy(),
            top_logits=plain.top_logits.copy(),
            plain_gap=plain.gap,
            plain_best_id=plain.best_id,
            replayed=everywhere,
        )
        assert np.array_equal(offsets_of(np.array([len(output.ids) for output in outputs])), plain.offsets)
        for index, request in enumerate(asked):
            if request is not None:
                self._change(scores, int(plain.offsets[index]), (requests[index], outputs[index]), request)
        return scores

    def _change(
        self, scores: ForcedScores, start: int, pair: tuple[Request, ServedOutput], asked: ReplayedRequest
    ) -> None:
        request, output = pair
        for position, token in enumerate(output.ids):
            before = [earlier % VOCAB_SIZE for earlier in output.ids[:position]]
            logits = torch.from_numpy(self.target.logits([*request.prompt_ids, *before])).float()[None]
            replay(logits, [RowContext(request=asked, prefix=np.array(before, dtype=np.int64))])
            row = logits[0].double().numpy()
            order, at = np.argsort(-row, kind="stable"), start + position
            scores.best_id[at], scores.best_logit[at] = order[0], row[order[0]]
            scores.top_ids[at], scores.top_logits[at] = order[:5], row[order[:5]]
            if token < VOCAB_SIZE:
                scores.gap[at] = np.inf if row[token] <= MASKED / 2 else row[order[0]] - row[token]
                scores.rank[at] = int(np.flatnonzero(order == token)[0])
