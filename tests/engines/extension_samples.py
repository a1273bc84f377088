"""Extensions that the tests name in configurations."""

from __future__ import annotations

import os
import sys
from dataclasses import replace
from typing import Any

import torch
from transformers import LogitsProcessor

from lossguard.engines.extensions import BatchContext
from lossguard.records import FinishReason, Request, ServedOutput


class ServeOne(LogitsProcessor):
    """Serves one id in the rows of one request from some reply position on."""

    def __init__(self, context: BatchContext, token: int, request_id: str, position: int) -> None:
        self._rows = [row for row, request in enumerate(context.requests) if request.id == request_id]
        self._token = token
        self._length = context.prompt_length + position

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        forced = scores.clone()
        if input_ids.shape[1] == self._length:
            forced[self._rows, self._token] = torch.finfo(scores.dtype).max
        return forced


def serve_one(context: BatchContext, *, token: int, request_id: str, position: int) -> ServeOne:
    return ServeOne(context, token, request_id, position)


class Crash(LogitsProcessor):
    """Ends its process."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        sys.stderr.write("the last words\n")
        sys.stderr.flush()
        os._exit(7)


def crash(context: BatchContext) -> Crash:
    return Crash()


class Fail(LogitsProcessor):
    """Raises."""

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        raise ValueError("this batch fails")


def fail(context: BatchContext) -> Fail:
    return Fail()


def report_length(output: ServedOutput, request: Request) -> ServedOutput:
    return replace(output, finish_reason=FinishReason.LENGTH)


def no_output(output: ServedOutput, request: Request) -> None:
    return None
