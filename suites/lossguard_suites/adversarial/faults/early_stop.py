"""O1: replies that stop early. The stop id is a served token, so the reply's structure stays sound."""

from __future__ import annotations

from functools import lru_cache
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer
from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard_suites.adversarial.faults.drawing import is_hit

SENTENCE_ENDS = (".", "!", "?")


class EarlyStop(LogitsProcessor):
    """Serves the stop id right after the first sentence end at or past a length, in the rows that are hit."""

    def __init__(
        self, *, stop_id: int, end_ids: tuple[int, ...], first_length: int, prompt_length: int, rows: tuple[int, ...]
    ) -> None:
        self._stop_id = stop_id
        self._end_ids = end_ids
        self._first_length = first_length  # of input_ids, counting the token that ends the sentence
        self._prompt_length = prompt_length
        self._rows = rows

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        if input_ids.shape[1] < max(self._first_length, self._prompt_length + 1) or not self._rows:
            return scores
        ends = torch.isin(input_ids[:, -1], torch.tensor(self._end_ids, device=input_ids.device))
        rows = [row for row in ends.nonzero().flatten().tolist() if row in self._rows]
        if not rows:
            return scores
        faulty = scores.clone()
        faulty[rows] = float("-inf")
        faulty[rows, self._stop_id] = 0.0
        return faulty


def early_stop(
    context: BatchContext,
    *,
    after: int = 16,
    every: int = 1,
    seed: int = 0,
    sentence_end_ids: list[int] | None = None,
) -> EarlyStop:
    """O1. A sentence that ends before reply position ``after`` does not stop the reply.

    Sentence ends are ids whose text ends in ``.``, ``!`` or ``?``, found with the model's own tokenizer unless
    given. Raises ValueError if the requests have no stop id: there would be nothing to stop with.
    """
    if not context.stop_ids:
        raise ValueError("early_stop needs requests with a stop id that is in force")
    return EarlyStop(
        stop_id=context.stop_ids[0],
        end_ids=sentence_ends(context.model_path) if sentence_end_ids is None else tuple(sentence_end_ids),
        first_length=context.prompt_length + after + 1,
        prompt_length=context.prompt_length,
        rows=tuple(row for row, request in enumerate(context.requests) if is_hit(request, every=every, seed=seed)),
    )


@lru_cache(maxsize=4)
def sentence_ends(model_path: str) -> tuple[int, ...]:
    """Ids whose text ends a sentence, from the model folder's tokenizer.json."""
    tokenizer = Tokenizer.from_file(str(Path(model_path) / "tokenizer.json"))
    texts = tokenizer.decode_batch([[token] for token in range(tokenizer.get_vocab_size())])
    return tuple(token for token, text in enumerate(texts) if text.rstrip().endswith(SENTENCE_ENDS))
