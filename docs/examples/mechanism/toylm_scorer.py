"""Forced scores of the toy model. A project whose model is a Hugging Face folder needs no such file."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np
from toylm import VOCAB, Model

from lossguard.records import ForcedScores
from lossguard.scoring.base import ScoringJob

TOP = 5


class ToyScorer:
    """The scorer protocol of lossguard over three tables."""

    vocab_size = VOCAB

    def __init__(self, folder: Path) -> None:
        self.model = Model(folder)

    def fingerprint(self) -> Mapping[str, object]:
        """What changes numbers."""
        return {"kind": "toylm"}

    def score(self, jobs: Sequence[ScoringJob], *, progress: Callable[[int], None] | None = None) -> list[ForcedScores]:
        """One ForcedScores an arm."""
        arms = [[(job.request, job.outputs[arm]) for job in jobs] for arm in range(len(jobs[0].outputs))]
        scored = []
        for arm in arms:
            rows = [self._logits(request.prompt_ids, output.ids) for request, output in arm]
            scored.append(_columns([output.request_id for _, output in arm], [output.ids for _, output in arm], rows))
            if progress:
                progress(scored[-1].num_tokens)
        return scored

    def close(self) -> None:
        """Nothing to give back."""

    def _logits(self, prompt: Sequence[int], reply: Sequence[int]) -> np.ndarray:
        return self.model.logits([*prompt, *reply], len(prompt))[: len(reply)]


def create(model_path: str, _options: Mapping[str, object]) -> ToyScorer:
    """The factory that lossguard.toml names."""
    return ToyScorer(Path(model_path))


def _columns(names: Sequence[str], replies: Sequence[Sequence[int]], rows: Sequence[np.ndarray]) -> ForcedScores:
    served = np.array([token for reply in replies for token in reply], dtype=np.int32)
    logits = np.concatenate(rows)
    order = np.argsort(-logits, axis=1, kind="stable")[:, :].astype(np.int32)
    own = np.take_along_axis(logits, served[:, None], axis=1)[:, 0]
    best = logits.max(axis=1)
    return ForcedScores(
        request_ids=tuple(names),
        offsets=np.concatenate([[0], np.cumsum([len(reply) for reply in replies])]).astype(np.int64),
        served_id=served,
        gap=best - own,
        best_logit=best,
        rank=(order == served[:, None]).argmax(axis=1).astype(np.int32),
        best_id=order[:, 0],
        logprob=own - np.logaddexp.reduce(logits, axis=1),
        top_ids=order[:, :TOP],
        top_logits=np.take_along_axis(logits, order[:, :TOP].astype(np.int64), axis=1),
        finite=np.isfinite(own),
    )
