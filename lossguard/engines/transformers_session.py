"""One model in one process: loaded on first use, its threads set only while it runs."""

from __future__ import annotations

import gc
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch

from lossguard.engines.base import ForcedPrefix
from lossguard.engines.model_facts import ModelFacts
from lossguard.engines.post_processing import post_processed
from lossguard.engines.torch_threads import torch_threads
from lossguard.engines.transformers_generation import LoadedSystem, decode_forced, serve_batch
from lossguard.engines.transformers_loading import load_model, resolve_device
from lossguard.engines.transformers_options import TransformersOptions
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput

Result = TypeVar("Result")

GENERATION_ERRORS = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    ImportError,
    LookupError,
    MemoryError,
    RuntimeError,
    TypeError,
    ValueError,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionSpec:
    """All that a process needs to serve; pickled to worker processes."""

    name: str
    model_path: str
    options: TransformersOptions
    facts: ModelFacts


def resolve_threads(options: TransformersOptions) -> tuple[int, str]:
    """(torch threads of each process, reason)."""
    if options.threads is not None:
        return options.threads, "given"
    if options.processes == 1:
        return torch.get_num_threads(), "torch's own choice"
    share = max(1, (os.cpu_count() or 1) // options.processes)
    return share, f"{os.cpu_count()} cores shared by {options.processes} processes"


class Session:
    """Serves batches in this process. ``close`` gives the memory back; the next call loads again."""

    def __init__(self, spec: SessionSpec) -> None:
        self._spec = spec
        self._loaded: LoadedSystem | None = None

    def serve(self, requests: Sequence[Request]) -> list[ServedOutput]:
        """Serve one batch and let the post processors act on it. Raises EngineError LG0209 to LG0211, LG0218."""
        outputs = self._run(lambda system: serve_batch(system, requests), f"request {requests[0].id!r}")
        extensions = self._spec.options.post_processors
        pairs = zip(requests, outputs, strict=True)
        return [post_processed(extensions, request, output) for request, output in pairs]

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """Decode one batch along recorded replies. Raises EngineError LG0209 or LG0211."""
        return self._run(lambda system: decode_forced(system, batch), f"forced decode of {len(batch)} replies")

    def close(self) -> None:
        """Drop the model."""
        if self._loaded is None:
            return
        self._loaded = None
        gc.collect()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def load(self) -> LoadedSystem:
        """The model with its assistant, loaded at the first call. Raises EngineError LG0209."""
        if self._loaded is None:
            spec = self._spec
            model = load_model(spec.model_path, spec.options, spec.facts)
            assistant_path = spec.options.assistant_model
            assistant = None
            if assistant_path is not None:
                assistant = model if assistant_path == "self" else load_model(assistant_path, spec.options, spec.facts)
                assistant.generation_config.num_assistant_tokens = spec.options.num_assistant_tokens
                assistant.generation_config.num_assistant_tokens_schedule = "constant"
            self._loaded = LoadedSystem(
                model=model,
                assistant=assistant,
                options=spec.options,
                facts=spec.facts,
                model_path=spec.model_path,
                device=resolve_device(spec.options)[0],
            )
        return self._loaded

    def _run(self, work: Callable[[LoadedSystem], Result], what: str) -> Result:
        with torch_threads(resolve_threads(self._spec.options)[0]):
            system = self.load()
            try:
                return work(system)
            except GENERATION_ERRORS as error:
                raise _broke(self._spec.name, what, error) from error


def _broke(name: str, what: str, error: BaseException) -> EngineError:
    return EngineError(
        f"the system {name!r} broke on {what}: {type(error).__name__}: {error}",
        why="the replies that are missing could be the ones that differ",
        fix="look at the error above; out of memory: lower batch_size. Finished replies are kept for --resume",
        code="LG0211",
    )
