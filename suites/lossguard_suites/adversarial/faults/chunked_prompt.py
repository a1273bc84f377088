"""Reading the prompt in chunks: rightly (a control), without one chunk, or with the wrong tokens."""

from __future__ import annotations

from typing import Any

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard_suites.adversarial.faults.passes import Pass, padding_of, pass_of, proceed, rows_in_share


class ChunkedPrompt:
    """Reads the prompt ``chunk`` columns at a time; rows that are hit do not see the chunk before the current one."""

    def __init__(self, context: BatchContext, *, chunk: int, blind_rows: tuple[int, ...]) -> None:
        self._prompt_length = context.prompt_length
        self._chunk = chunk
        self._blind_rows = list(blind_rows)

    def __call__(self, call: ForwardCall) -> Any:
        current = pass_of(call, self._prompt_length)
        if not current.is_prompt:
            return proceed(call)
        output = None
        for first in range(0, current.width, self._chunk):
            output = self._read(call, current, first, min(first + self._chunk, current.width))
        return output

    def _read(self, call: ForwardCall, current: Pass, first: int, stop: int) -> Any:
        mask = current.attention_mask[:, :stop].clone()
        if self._blind_rows and first:
            mask[self._blind_rows, first - self._chunk : first] = 0
        return proceed(
            call,
            input_ids=current.input_ids[:, first:stop],
            attention_mask=mask,
            position_ids=current.position_ids[:, first:stop],
        )


class Untouched:
    """Changes nothing."""

    def __call__(self, call: ForwardCall) -> Any:
        return proceed(call)


def chunked_prompt(context: BatchContext, *, chunk: int = 16) -> ChunkedPrompt:
    """F60. The prompt in chunks, each seeing all before it: other widths, other roundings, the same meaning."""
    return ChunkedPrompt(context, chunk=chunk, blind_rows=())


def blind_chunks(
    context: BatchContext, *, share: float = 1.0, chunk: int = 16, seed: int = 0
) -> ChunkedPrompt | Untouched:
    """F13. Chunks whose results are merged wrongly: each one misses the chunk before it."""
    rows = rows_in_share(context, share, seed)
    return ChunkedPrompt(context, chunk=chunk, blind_rows=rows) if rows else Untouched()


class WrongChunk:
    """Feeds, in rows that are hit, the tokens of the first chunk once more in place of later ones."""

    def __init__(self, context: BatchContext, *, chunk: int, tokens: int, rows: tuple[int, ...]) -> None:
        self._context = context
        self._chunk = chunk
        self._tokens = tokens
        self._rows = rows

    def __call__(self, call: ForwardCall) -> Any:
        current = pass_of(call, self._context.prompt_length)
        if not current.is_prompt:
            return proceed(call)
        changed, padding = current.input_ids.clone(), padding_of(self._context)
        for row in self._rows:
            number = min(self._tokens, current.width - padding[row] - self._chunk)
            if number > 0:
                first = padding[row]
                source = current.input_ids[row, first : first + number]
                changed[row, first + self._chunk : first + self._chunk + number] = source
        return proceed(call, input_ids=changed)


def wrong_chunk(
    context: BatchContext, *, tokens: int = 32, chunk: int = 32, share: float = 1.0, seed: int = 0
) -> WrongChunk:
    """F15. In prompts over ``chunk`` tokens, up to ``tokens`` tokens after them are those of the first chunk again.

    ``tokens`` is at most ``chunk``.
    """
    rows = rows_in_share(context, share, seed)
    return WrongChunk(context, chunk=chunk, tokens=min(tokens, chunk), rows=rows)
