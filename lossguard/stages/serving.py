"""Serving: every output is on disk before the next is asked for, and only what is missing is asked for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lossguard.checks.text import TEXT_LEVEL
from lossguard.engines.base import Engine, Pace, PacedEngine
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput
from lossguard.run_folder import append_line, damaged, read_outputs
from lossguard.stages.validation import validated
from lossguard.stages.waves import Wave


def is_complete(requests: Sequence[Request], path: Path) -> bool:
    """Whether ``path`` holds a reply to each of the requests."""
    outputs, _notes = read_outputs(path)
    return all(request.id in outputs for request in requests)


@dataclass(frozen=True, slots=True, kw_only=True)
class Asking:
    """How requests are asked, and who hears of what comes back."""

    ask: Callable[[Sequence[Request], Engine], Sequence[Request]] = lambda requests, _engine: requests
    """The same requests in the form that the engine gets."""
    note: Callable[[str], None] = lambda _text: None  # told what was dropped on reading
    waves: Sequence[Wave] = ()  # the same requests in the order and at the pace they are asked; empty: all at once
    heard: Callable[[ServedOutput], None] = lambda _output: None  # gets every output that is on disk, once


def serve_missing(
    engine: Callable[[], Engine],
    requests: Sequence[Request],
    path: Path,
    progress: Callable[[int], None],
    how: Asking | None = None,
) -> list[ServedOutput]:
    """Outputs for ``requests``, in their order: those in ``path``, and the rest served now.

    ``engine`` is only called if something is missing. Raises EngineError LG0608 if the engine leaves a request
    unanswered or answers one that was not asked; what came before is kept in ``path``.
    """
    how = how or Asking()
    outputs, notes = read_outputs(path)
    for text in notes:
        how.note(text)
    asked = {request.id for request in requests}
    for request_id in outputs:
        if request_id not in asked:
            raise damaged(path, f"it answers request {request_id!r}, which this run does not ask")
    progress(sum(len(output.ids) for output in outputs.values()))
    for output in list(outputs.values()):
        how.heard(output)
    for wave in how.waves or [Wave(requests=tuple(requests), pace=None)]:
        missing = [request for request in wave.requests if request.id not in outputs]
        if missing:
            running = engine()
            kept = Kept(outputs=outputs, path=path, heard=how.heard)
            _serve(running, how.ask(missing, running), kept, progress, wave.pace)
    return [outputs[request.id] for request in requests]


def serve_in_groups(
    engine: Callable[[], Engine], groups: Sequence[Sequence[Request]], path: Path, progress: Callable[[int], None]
) -> dict[str, ServedOutput]:
    """As ``serve_missing``, but each group is a call of its own, so that its requests share a batch."""
    outputs, _notes = read_outputs(path)
    for group in groups:
        missing = [request for request in group if request.id not in outputs]
        if missing:
            _serve(engine(), missing, Kept(outputs=outputs, path=path), progress)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """Where outputs go: the ones so far, their file, and whoever wants to hear of each."""

    outputs: dict[str, ServedOutput]
    path: Path
    heard: Callable[[ServedOutput], None] = lambda _output: None

    def add(self, output: ServedOutput) -> None:
        """On disk first."""
        append_line(self.path, output.to_json())
        self.outputs[output.request_id] = output
        self.heard(output)


def _serve(
    engine: Engine,
    missing: Sequence[Request],
    kept: Kept,
    progress: Callable[[int], None],
    pace: Pace | None = None,
) -> None:
    asked = {request.id for request in missing}
    for yielded in _replies(engine, missing, pace):
        output = _marked(engine, validated(yielded))
        _require_open(output, asked, kept.outputs)
        kept.add(output)
        progress(len(output.ids))
    _require_all(asked, kept.outputs)


def _replies(engine: Engine, missing: Sequence[Request], pace: Pace | None) -> Iterator[ServedOutput]:
    if pace is not None and isinstance(engine, PacedEngine):
        return engine.serve_paced(missing, pace)
    return engine.serve(missing)


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
