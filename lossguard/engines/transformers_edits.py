"""State edits: functions around every forward pass of a model while one batch is generated."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

from transformers import PreTrainedModel

from lossguard.engines.extensions import BatchContext, Extension, ForwardCall, StateEdit


@contextmanager
def edited(model: PreTrainedModel, extensions: Sequence[Extension], context: BatchContext) -> Iterator[None]:
    """While active, every forward pass of ``model`` goes through the edits, the first one outermost.

    Edits are made anew for each batch, from what the batch is. Nothing is touched if there is none.
    """
    if not extensions:
        yield
        return
    edits = [extension.load()(context, **extension.arguments) for extension in extensions]
    original = model.forward

    # the signature stays: ``generate`` looks at it to know which arguments the model takes
    @functools.wraps(original)
    def forward(**arguments: Any) -> Any:
        return _through(model, edits, arguments, original)

    before = model.__dict__.get("forward")
    model.__dict__["forward"] = forward
    try:
        yield
    finally:
        if before is None:
            del model.__dict__["forward"]
        else:
            model.__dict__["forward"] = before


def _through(model: Any, edits: Sequence[StateEdit], arguments: Mapping[str, Any], original: Any) -> Any:
    if not edits:
        return original(**arguments)

    def proceed(changed: Mapping[str, Any]) -> Any:
        return _through(model, edits[1:], changed, original)

    return edits[0](ForwardCall(model=model, arguments=arguments, proceed=proceed))
