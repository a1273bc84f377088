"""The transformers engine: ``model.generate`` itself is what serves.

Nothing here writes a decode loop, so that stock is stock. Requests that ask the same of the sampler are served in
left-padded batches; with ``processes`` several workers, each with its own model, are dealt one batch at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix
from lossguard.engines.model_facts import read_model_facts
from lossguard.engines.request_checks import RequestLimits, check_requests
from lossguard.engines.transformers_batches import forced_batches, plan_batches
from lossguard.engines.transformers_fingerprint import environment_facts
from lossguard.engines.transformers_loading import resolve_device, resolve_dtype
from lossguard.engines.transformers_options import parse_options
from lossguard.engines.transformers_pool import WorkerPool
from lossguard.engines.transformers_session import Session, SessionSpec
from lossguard.engines.transformers_worker import Job
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput

SAMPLING = frozenset(
    {
        "bad_words",
        "ignore_eos",
        "logit_bias",
        "min_p",
        "min_tokens",
        "repetition_penalty",
        "seed",
        "stop_ids",
        "stop_strings",
        "temperature",
        "top_k",
        "top_p",
    }
)
MAX_LOGPROBS = 100


class TransformersEngine:
    """Serves through ``transformers``; see ``lossguard.engines.base.Engine`` for the contract of each method."""

    def __init__(self, spec: EngineSpec) -> None:
        """Reads options and ``config.json``; weights are loaded by the first ``serve``.

        Raises UsageError LG0204 (options), LG0205 (an extension cannot be imported) or LG0206 (no model folder).
        """
        options = parse_options(spec)
        for extension in options.extensions:
            extension.load()
        facts = read_model_facts(spec.model_path)
        self._spec = SessionSpec(name=spec.name, model_path=spec.model_path, options=options, facts=facts)
        self._session = Session(self._spec)
        self._pool = WorkerPool(self._spec)

    @property
    def capabilities(self) -> Capabilities:
        """From options and ``config.json`` alone."""
        options, facts = self._spec.options, self._spec.facts
        assisted = options.is_assisted
        counted = {"accepted", "after_rejection", "block_position", "drafts", "steps"} if assisted else set()
        return Capabilities(
            # a stop string inside a block of accepted drafts would be passed over by transformers
            sampling=SAMPLING - {"stop_strings"} if assisted else SAMPLING,
            max_logprobs=0 if assisted else MAX_LOGPROBS,
            test_logprobs=0 if assisted else min(options.logprobs, MAX_LOGPROBS),
            forced_decode=not assisted,
            seeds=True,
            telemetry=frozenset({"batch"} | counted),
            logit_dtype=resolve_dtype(options, facts)[0],
            concurrency=options.batch_size,
        )

    @property
    def is_movable(self) -> bool:
        """Whether another process serves the same beside this one: on a CPU, where neither holds a device.

        A system with ``processes`` has its own, which take the cores already. One without ``threads`` computes with as
        many as its process happens to have, and extensions of others may change what the process computes.
        """
        options = self._spec.options
        is_alone = options.processes == 1 and all(one.is_ours for one in options.extensions)
        return is_alone and options.threads is not None and resolve_device(options)[0] == "cpu"

    def fingerprint(self) -> Mapping[str, Any]:
        """Options, versions, device and threads, with the reason of every automatic choice."""
        return environment_facts(self._spec)

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        """Yield outputs batch by batch.

        Raises UsageError LG0207 or LG0208 before anything runs, EngineError LG0209 to LG0212 or LG0218 later.
        """
        check_requests(requests, self._limits())
        batches = plan_batches(requests, self._spec.options)
        return self._served(batches)

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """As the protocol says; replies that ask different things of the sampler are decoded in separate batches.

        Raises UsageError LG0207 or LG0208, EngineError LG0209 to LG0213.
        """
        if self._spec.options.is_assisted:
            raise _no_forced_decode(self._spec.name)
        check_requests([prefix.request for prefix in batch], self._limits())
        results: list[tuple[int, ...]] = [()] * len(batch)
        for indices in forced_batches(batch):
            group = tuple(batch[index] for index in indices)
            for index, tokens in zip(indices, self._decoded(group), strict=True):
                results[index] = tokens
        return results

    def close(self) -> None:
        """Kill workers and drop the model; may be called twice."""
        self._pool.close()
        self._session.close()

    def _limits(self) -> RequestLimits:
        capabilities, facts = self.capabilities, self._spec.facts
        return RequestLimits(
            engine="transformers",
            sampling=capabilities.sampling,
            max_logprobs=capabilities.max_logprobs,
            vocab_size=facts.vocab_size,
            max_positions=facts.max_positions,
        )

    def _served(self, batches: Sequence[tuple[Request, ...]]) -> Iterator[ServedOutput]:
        if self._spec.options.processes == 1:
            for batch in batches:
                yield from self._session.serve(batch)
            return
        for answer in self._pool.run([Job(requests=batch) for batch in batches]):
            yield from answer.outputs

    def _decoded(self, group: tuple[ForcedPrefix, ...]) -> Sequence[tuple[int, ...]]:
        if self._spec.options.processes == 1:
            return self._session.forced_decode(group)
        (answer,) = self._pool.run([Job(forced=group)])
        return answer.forced


def create(spec: EngineSpec) -> TransformersEngine:
    """The factory behind the entry point ``transformers`` of ``lossguard.engines``."""
    return TransformersEngine(spec)


def _no_forced_decode(name: str) -> EngineError:
    return EngineError(
        f"the system {name!r} verifies drafts and cannot be decoded along recorded replies",
        why="forced decode shows what stock serves token by token",
        fix="audit with a stock system that has neither prompt_lookup_num_tokens nor assistant_model",
        code="LG0213",
    )
