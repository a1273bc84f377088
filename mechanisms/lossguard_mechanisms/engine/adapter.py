"""The engine ``embedded`` of lossguard: the loop of ``core`` behind the engine protocol.

Nothing it reports decides anything: tokens, times and acceptance are the client's to measure.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch

from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix, Pace
from lossguard.engines.model_facts import read_model_facts
from lossguard.engines.request_checks import RequestLimits, check_requests
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput
from lossguard_mechanisms.engine.core import EngineCore
from lossguard_mechanisms.engine.facts import environment_facts
from lossguard_mechanisms.engine.loading import SystemSpec, load_core
from lossguard_mechanisms.engine.options import parse_options, resolve_device, resolve_dtype
from lossguard_mechanisms.engine.session import W12_LAYERS, Session
from lossguard_mechanisms.engine.tree_options import require_policy

SAMPLING = frozenset({"ignore_eos", "min_p", "min_tokens", "seed", "stop_ids", "temperature", "top_k", "top_p"})
MAX_LOGPROBS = 100
DRAFT_COLUMNS = frozenset({"accepted", "after_rejection", "block_position", "drafts", "steps"})


class EmbeddedEngine:
    """Serves through ``EngineCore``; see ``lossguard.engines.base.Engine`` for the contract of each method."""

    def __init__(self, spec: EngineSpec, *, load: Callable[[SystemSpec], EngineCore] = load_core) -> None:
        """Reads options and ``config.json``, of the drafter of trees too; weights are loaded by the first ``serve``.

        Raises UsageError LG0204 (options), LG0205 (a named function cannot be imported), LG0206 (no model folder),
        LG1901 or LG1903 (a tree that the drafter's lattice does not have), LG1401 or LG1402 (no drafter's folder).
        """
        options = parse_options(spec)
        for extension in options.extensions:
            extension.load()
        facts = read_model_facts(spec.model_path)
        self._spec = SystemSpec(name=spec.name, model_path=spec.model_path, options=options, facts=facts)
        require_policy(options, vocab_size=facts.vocab_size)
        self._session = Session(self._spec, load)

    @property
    def capabilities(self) -> Capabilities:
        """From options and ``config.json`` alone."""
        options = self._spec.options
        has_drafter = options.drafter is not None
        return Capabilities(
            sampling=SAMPLING,
            max_logprobs=MAX_LOGPROBS,
            test_logprobs=min(options.logprobs, MAX_LOGPROBS),
            forced_decode=not has_drafter,
            seeds=True,
            telemetry=frozenset({"batch"})
            | (DRAFT_COLUMNS if has_drafter else frozenset())
            | ({W12_LAYERS} if options.weights == "w12" else frozenset()),
            logit_dtype=resolve_dtype(options, self._spec.facts)[0],
            concurrency=options.slots,
        )

    @property
    def is_movable(self) -> bool:
        """Whether another process serves the same beside this one: on a CPU, where neither holds a device.

        Not without ``threads``, which would be as many as the process happens to have, nor with extensions of others.
        """
        options = self._spec.options
        is_settled = options.threads is not None and all(one.is_ours for one in options.extensions)
        return is_settled and torch.device(resolve_device(options)[0]).type == "cpu"

    def fingerprint(self) -> Mapping[str, Any]:
        """Options, versions, device and threads, with the reason of every automatic choice."""
        return environment_facts(self._spec)

    def loaded_facts(self) -> Mapping[str, Any]:
        """Which layers have W12, and why others have not, where that was asked for."""
        conversion = self._session.conversion
        return {} if conversion is None else {"w12": str(conversion)}

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        """Yield outputs as they end.

        Raises UsageError LG0207 or LG0208 before anything runs, LG1504 or EngineError LG0218 or LG1501 later.
        """
        self._check(requests)
        return self._session.serve(self._ordered(requests), None)

    def serve_paced(self, requests: Sequence[Request], pace: Pace) -> Iterator[ServedOutput]:
        """As ``serve``, with at most ``pace.concurrency`` requests under way."""
        self._check(requests)
        return self._session.serve(self._ordered(requests), pace)

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """As the protocol says. Raises UsageError LG0207 or LG0208, EngineError LG1501 or LG1502."""
        if self._spec.options.drafter is not None:
            raise _no_forced_decode(self._spec.name)
        self._check([prefix.request for prefix in batch])
        return self._session.forced_decode(batch)

    def close(self) -> None:
        """Drop model and states; may be called twice."""
        self._session.close()

    def _check(self, requests: Sequence[Request]) -> None:
        facts = self._spec.facts
        limits = RequestLimits(
            engine="embedded",
            sampling=SAMPLING,
            max_logprobs=MAX_LOGPROBS,
            vocab_size=facts.vocab_size,
            max_positions=facts.max_positions,
        )
        check_requests(requests, limits)

    def _ordered(self, requests: Sequence[Request]) -> list[Request]:
        if self._spec.options.order == "length":
            return sorted(requests, key=lambda request: len(request.prompt_ids))
        return list(requests)


def create(spec: EngineSpec) -> EmbeddedEngine:
    """The factory behind the entry point ``embedded`` of ``lossguard.engines``."""
    return EmbeddedEngine(spec)


def _no_forced_decode(name: str) -> EngineError:
    return EngineError(
        f"the system {name!r} verifies drafts and cannot be decoded along recorded replies",
        why="forced decode shows what stock serves token by token",
        fix="audit with a stock system that has no drafter",
        code="LG1502",
    )
