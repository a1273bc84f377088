"""The engine protocol: what the gate asks of any way to serve the target model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

from lossguard.records import Request, ServedOutput


@dataclass(frozen=True, slots=True, kw_only=True)
class Capabilities:
    """What an engine can do; what it cannot is refused before anything runs, never dropped."""

    sampling: frozenset[str] = frozenset()
    """Names of ``SamplingParams`` fields it honours, besides ``max_tokens``."""
    token_ids_out: bool = True
    max_logprobs: int = 0
    test_logprobs: int = 0
    """How many top log-probabilities test requests ask for: as many as cost next to nothing and change no path."""
    forced_decode: bool = False
    seeds: bool = False
    telemetry: frozenset[str] = frozenset()
    logit_dtype: str = "float32"
    """dtype of the served logits: sets the ULP part of delta. ``bfloat16``, ``float16`` or ``float32``."""
    concurrency: int = 1
    """How many requests it serves together; the audit replays events at this and at half of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedPrefix:
    """A recorded reply to be fed through stock's decode: ``served_ids[:num_positions]`` are visited."""

    request: Request
    served_ids: tuple[int, ...]
    num_positions: int


class Engine(Protocol):
    """One system under test.

    An engine owns its processes and memory: ``close`` gives all of them back and may be called twice.
    """

    @property
    def capabilities(self) -> Capabilities:
        """Known before the first request; may need the model's config, never its weights."""

    def fingerprint(self) -> Mapping[str, Any]:
        """Facts that change numerics: engine, arguments, versions, device, threads (JSON values)."""

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        """Yield one output per request as each finishes, in any order.

        The token that ended a reply is part of ``ids``. Raises EngineError; outputs yielded before stay valid.
        """

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """Decode one batch together along recorded prefixes, state built by decode.

        Returns for each prefix the token that this engine would serve at every position
        ``0 .. num_positions - 1``, given the recorded tokens before it. Greedy requests only.
        """

    def close(self) -> None:
        """Give back processes, memory and files."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """How requests reach an engine that can be told."""

    concurrency: int  # requests under way at once
    stagger_seconds: float = 0.0  # between the first ones


@runtime_checkable
class PacedEngine(Protocol):
    """An engine whose requests may be sent at another pace than its own."""

    def serve_paced(self, requests: Sequence[Request], pace: Pace) -> Iterator[ServedOutput]:
        """As ``Engine.serve``, with a telemetry column ``under_way``: requests under way when this one was sent."""


@runtime_checkable
class TellsLoaded(Protocol):
    """An engine that knows more of its system once the weights are there: what of them was stored how, and why."""

    def loaded_facts(self) -> Mapping[str, Any]:
        """JSON values; empty as long as nothing has been loaded. They explain, and identify nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineSpec:
    """What a factory gets: the system's entry of the config, with the model's folder resolved."""

    name: str
    model_path: str
    options: Mapping[str, Any] = field(default_factory=dict)
    """Engine-specific keys of the system; the factory refuses unknown ones, naming the near miss."""
    folder: Path | None = None
    """The system's folder in the run folder, for logs, made when first written to; None outside of a run."""
    make_room: Callable[[frozenset[str]], None] = field(default=lambda _devices: None, repr=False)
    """To be called with the accelerators that are about to be used: what else this run holds there is closed first."""
