"""An engine without a model, by name: a reply counts up from the last token of its prompt."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix
from lossguard.errors import EngineError
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput


def make_requests(count: int) -> list[Request]:
    """Requests for four tokens each."""
    sampling = SamplingParams(max_tokens=4)
    return [
        Request(id=f"r{index}", prompt_ids=(index,), sampling=sampling, set="s", cluster=f"r{index}")
        for index in range(count)
    ]


class CountingEngine:
    """``step`` is its fault; at ``dies_at`` replies it ends its process, at ``fails_at`` it raises."""

    is_movable = True

    def __init__(self, spec: EngineSpec) -> None:
        self._options = dict(spec.options)

    @property
    def capabilities(self) -> Capabilities:
        return Capabilities(concurrency=2)

    def fingerprint(self) -> Mapping[str, Any]:
        return {"step": self._options.get("step", 1)}

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        for index, request in enumerate(requests):
            if index == self._options.get("dies_at"):
                sys.stderr.write("this is the end\n")
                sys.stderr.flush()
                os._exit(9)
            if index == self._options.get("fails_at"):
                raise EngineError("told to fail", why="a test", fix="do not", code="LG0211")
            first, step = request.prompt_ids[-1], self._options.get("step", 1)
            ids = tuple(first + step * place for place in range(request.sampling.max_tokens))
            yield ServedOutput(request_id=request.id, ids=ids, finish_reason=FinishReason.LENGTH)

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        return [prefix.served_ids[: prefix.num_positions] for prefix in batch]

    def close(self) -> None:
        """Nothing to give back."""


def create(spec: EngineSpec) -> CountingEngine:
    """The factory."""
    return CountingEngine(spec)
