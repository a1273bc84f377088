"""Serving: every output is on disk before the next is asked for, and only what is missing is asked for."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from lossguard.checks.text import TEXT_LEVEL
from lossguard.engines.base import Engine
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput
from lossguard.run_folder import append_line, damaged, read_outputs
from lossguard.stages.validation import validated


def is_complete(requests: Sequence[Request], path: Path) -> bool:
    """Whether ``path`` holds a reply to each of the requests."""
    outputs, _notes = read_outputs(path)
    return all(request.id in outputs for request in requests)


def serve_missing(
    engine: Callable[[], Engine],
    requests: Sequence[Request],
    path: Path,
    progress: Callable[[int], None],
    *,
    ask: Callable[[Sequence[Request], Engine], Sequence[Request]] = lambda requests, _engine: requests,
    note: Callable[[str], None] = lambda _text: None,
) -> list[ServedOutput]:
    """Outputs for ``requests``, in their order: those in ``path``, and the rest served now.

    ``engine`` is only called if something is missing; ``ask`` may change how the missing ones are asked, ``note`` is
    told what was dropped on reading. Raises EngineError LG0608 if the engine leaves a request unanswered or answers
    one that was not asked; what came before is kept in ``path``.
    """
    outputs, notes = read_outputs(path)
    for text in notes:
        note(text)
    asked = {request.id for request in requests}
    for request_id in outputs:
        if request_id not in asked:
            raise damaged(path, f"it answers request {request_id!r}, which this run does not ask")
    progress(sum(len(output.ids) for output in outputs.values()))
    missing = [request for request in requests if request.id not in outputs]
    if missing:
        running = engine()
        _serve(running, ask(missing, running), outputs, path, progress)
    return [outputs[request.id] for request in requests]


def serve_in_groups(
    engine: Callable[[], Engine], groups: Sequence[Sequence[Request]], path: Path, progress: Callable[[int], None]
) -> dict[str, ServedOutput]:
    """As ``serve_missing``, but each group is a call of its own, so that its requests share a batch."""
    outputs, _notes = read_outputs(path)
    for group in groups:
        missing = [request for request in group if request.id not in outputs]
        if missing:
            _serve(engine(), missing, outputs, path, progress)
    return outputs


def answers(engine: Engine, requests: Sequence[Request]) -> dict[str, ServedOutput]:
    """One validated output per request, kept in memory only. Raises EngineError LG0608 and LG0618."""
    outputs: dict[str, ServedOutput] = {}
    asked = {request.id for request in requests}
    for yielded in engine.serve(requests):
        output = _marked(engine, validated(yielded))
        _require_open(output, asked, outputs)
        outputs[output.request_id] = output
    _require_all(asked, outputs)
    return outputs


def _serve(
    engine: Engine,
    missing: Sequence[Request],
    outputs: dict[str, ServedOutput],
    path: Path,
    progress: Callable[[int], None],
) -> None:
    asked = {request.id for request in missing}
    for yielded in engine.serve(missing):
        output = _marked(engine, validated(yielded))
        _require_open(output, asked, outputs)
        append_line(path, output.to_json())
        outputs[output.request_id] = output
        progress(len(output.ids))
    _require_all(asked, outputs)


def _marked(engine: Engine, output: ServedOutput) -> ServedOutput:
    """A reply that came as text only says so for ever: no verdict on it may be PASS (checks/text.py)."""
    if engine.capabilities.token_ids_out:
        return output
    return replace(output, telemetry={**output.telemetry, TEXT_LEVEL: (1.0,)})


def _require_open(output: ServedOutput, asked: set[str], outputs: dict[str, ServedOutput]) -> None:
    if output.request_id not in asked or output.request_id in outputs:
        raise _contract(f"the engine answered request {output.request_id!r}, which was not open")


def _require_all(asked: set[str], outputs: dict[str, ServedOutput]) -> None:
    unanswered = sorted(asked - outputs.keys())
    if unanswered:
        raise _contract(f"the engine left {len(unanswered)} requests unanswered, the first is {unanswered[0]!r}")


def _contract(found: str) -> EngineError:
    return EngineError(
        found,
        why="a verdict over the replies that happened to arrive would hide those that did not",
        fix="repair the engine or the system, then continue with --resume: finished replies are kept",
        code="LG0608",
    )
