"""What the engine sees of a running ``generate``: arrival times, raw log-probabilities, drafts."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from transformers import LogitsProcessor, PreTrainedModel, StoppingCriteria, StopStringCriteria

from lossguard.records import ReportedLogprobs


class ArrivalClock(StoppingCriteria):
    """Stops nothing; notes when each column of tokens arrived and which rows a stop string has ended.

    Called by ``generate`` once per step: one new column, or a block of them under assisted decoding.
    """

    def __init__(self, prompt_length: int, stop_strings: Mapping[str, StopStringCriteria]) -> None:
        self.arrival_ns: list[int] = []  # one per generated column
        self.block_starts: list[int] = []  # column at which each step's block begins
        self.string_ends: dict[int, tuple[int, str]] = {}  # row -> (columns when a stop string was complete, which)
        self._prompt_length = prompt_length
        self._stop_strings = stop_strings

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        newest = input_ids[:, -1].cpu()  # waits for the device: a queued kernel is no arrival
        now = time.monotonic_ns()
        num_columns = input_ids.shape[1] - self._prompt_length
        self.block_starts.append(len(self.arrival_ns))
        self.arrival_ns.extend([now] * (num_columns - len(self.arrival_ns)))
        done = torch.zeros(newest.shape[0], dtype=torch.bool, device=input_ids.device)
        for string, criterion in self._stop_strings.items():
            complete: Any = criterion(input_ids, scores)
            for row in complete.nonzero().flatten().tolist():
                self.string_ends.setdefault(row, (num_columns, string))
            done = done | complete
        return done


class LogprobRecorder:
    """Top-k log-probabilities (nats) of the raw served logits, step by step, so that no [T, B, V] is ever held.

    ``observe`` is a forward hook of the model: it sees the logits before any processor, temperature or filter.
    Log-softmax is taken in float32. Plain decoding only (one position per forward).
    """

    def __init__(self, num_top: int) -> None:
        self._num_top = num_top
        self._current: torch.Tensor | None = None  # [B, V]
        self._served: list[torch.Tensor] = []  # [B] per step
        self._top_ids: list[torch.Tensor] = []  # [B, k] per step
        self._top_logprobs: list[torch.Tensor] = []

    def observe(self, _module: Any, _arguments: Any, output: Any) -> None:
        """Keep the last position's log-softmax and its top k."""
        self._current = torch.log_softmax(output.logits[:, -1].to(torch.float32), dim=-1)
        values, ids = self._current.topk(self._num_top, dim=-1)
        self._top_ids.append(ids.cpu())
        self._top_logprobs.append(values.cpu())

    def served(self, tokens: Any) -> None:
        """Note the log-probability of the tokens [B] that were served from the current logits."""
        if self._current is None:
            raise AssertionError("tokens were served before the model ran")
        self._served.append(self._current.gather(1, tokens.to(self._current.device)[:, None])[:, 0].cpu())
        self._current = None

    def row(self, row: int, num_tokens: int) -> ReportedLogprobs:
        """What is reported for one reply."""
        steps = range(num_tokens)
        return ReportedLogprobs(
            served=tuple(float(self._served[step][row]) for step in steps),
            top_ids=tuple(tuple(self._top_ids[step][row].tolist()) for step in steps),
            top_logprobs=tuple(tuple(self._top_logprobs[step][row].tolist()) for step in steps),
        )


class ServedTokenWatch(StoppingCriteria):
    """Tells a LogprobRecorder which tokens came out of each step; stops nothing."""

    def __init__(self, recorder: LogprobRecorder) -> None:
        self._recorder = recorder

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self._recorder.served(input_ids[:, -1])
        return torch.zeros(input_ids.shape[0], dtype=torch.bool, device=input_ids.device)


class ForcedTokens(LogitsProcessor):
    """Records the token that greedy decoding would serve, then lets it serve the recorded one.

    Must come last: it sees the scores after every other processor, as the argmax of ``generate`` does.
    """

    def __init__(self, forced: torch.Tensor, prompt_length: int) -> None:
        self._forced = forced  # int64 [B, T]
        self._prompt_length = prompt_length
        self._would_serve: list[torch.Tensor] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self._would_serve.append(torch.argmax(scores, dim=-1).cpu())
        step = input_ids.shape[1] - self._prompt_length
        only = torch.full_like(scores, float("-inf"))
        return only.scatter_(1, self._forced[:, step : step + 1], 0.0)

    def would_serve(self) -> list[list[int]]:
        """Tokens per row, [B][T]."""
        rows: list[list[int]] = torch.stack(self._would_serve, dim=1).tolist()
        return rows


class DraftCounter:
    """Counts the tokens that a candidate generator proposes, from outside it."""

    def __init__(self) -> None:
        self.drafted: list[int] = []  # per step

    @contextmanager
    def watch(self, model: PreTrainedModel) -> Iterator[None]:
        """While active, every candidate generator that ``model`` makes is observed."""
        original: Any = model._get_candidate_generator

        def observed(*arguments: Any, **named: Any) -> Any:
            generator = original(*arguments, **named)
            propose = generator.get_candidates

            def get_candidates(input_ids: Any, *more: Any, **options: Any) -> Any:
                candidates = propose(input_ids, *more, **options)
                self.drafted.append(int(candidates[0].shape[1] - input_ids.shape[1]))
                return candidates

            generator.get_candidates = get_candidates
            return generator

        model.__dict__["_get_candidate_generator"] = observed
        try:
            yield
        finally:
            del model.__dict__["_get_candidate_generator"]
