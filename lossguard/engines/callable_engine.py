"""The callable engine: any ``def generate(prompts: list[list[int]], max_new_tokens: int) -> list[list[int]]``.

A function has no finish reason to report, so it is derived: a reply that ends in one of the request's stop ids
is ``stop``, one of exactly ``max_tokens`` tokens is ``length``, and any other is ``abort``, which the structure
check counts as a violation: such a reply ended for no reason that the request allows. Replies are taken as they
are: longer than asked, or going on after a stop id, is for the checks to judge and never cut here.

An object with ``__call__`` may have more methods (``callable_object``): its own fingerprint, and decode along recorded
replies, with which it can be audited.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from numbers import Integral
from typing import Any, cast

from lossguard.engines.base import Capabilities, EngineSpec, ForcedPrefix
from lossguard.engines.callable_object import DecodesAlong, DescribesItself
from lossguard.engines.extensions import Extension
from lossguard.engines.options import OptionReader, bad_option, refuse_unknown
from lossguard.engines.request_checks import RequestLimits, check_requests
from lossguard.errors import EngineError
from lossguard.records import FinishReason, Request, ServedOutput

Generate = Callable[[list[list[int]], int], list[list[int]]]
DEFAULT_BATCH_SIZE = 64
LOGIT_DTYPES = ("float32", "bfloat16", "float16")


class CallableEngine:
    """Serves through a function; see ``lossguard.engines.base.Engine`` for the contract of each method."""

    def __init__(self, name: str, generate: Generate, *, batch_size: int, logit_dtype: str) -> None:
        self._name = name
        self._generate = generate
        self._batch_size = batch_size
        self._logit_dtype = logit_dtype

    @property
    def capabilities(self) -> Capabilities:
        """Greedy decoding with stop ids; nothing else can be told to the function."""
        return Capabilities(
            sampling=frozenset({"stop_ids"}),
            logit_dtype=self._logit_dtype,
            concurrency=self._batch_size,
            forced_decode=isinstance(self._generate, DecodesAlong),
        )

    def fingerprint(self) -> Mapping[str, Any]:
        """The function's name, and what an object tells about itself; more is the author's to tell."""
        function: object = self._generate
        module = getattr(function, "__module__", None) or type(function).__module__
        own: Mapping[str, Any] = function.fingerprint() if isinstance(function, DescribesItself) else {}
        return {
            **own,
            "engine": "callable",
            "target": f"{module}:{getattr(function, '__qualname__', type(function).__qualname__)}",
            "batch_size": self._batch_size,
            "logit_dtype": self._logit_dtype,
        }

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        """Call the function on batches of requests with the same ``max_tokens``.

        Raises UsageError LG0207 or LG0208 before anything runs, EngineError LG0214 (the function raised) or
        LG0215 (it returned something else than token ids) later.
        """
        limits = RequestLimits(
            engine="callable",
            sampling=self.capabilities.sampling,
            max_logprobs=0,
            vocab_size=None,
            max_positions=None,
        )
        check_requests(requests, limits)
        return self._served(_batches(requests, self._batch_size))

    def forced_decode(self, batch: Sequence[ForcedPrefix]) -> list[tuple[int, ...]]:
        """Ask an object that has ``forced_decode``.

        Raises EngineError LG0213 for a plain function, which cannot be made to visit recorded positions, and as
        ``serve`` for what an object does.
        """
        system: object = self._generate
        if isinstance(system, DecodesAlong):
            prompts = [list(prefix.request.prompt_ids) for prefix in batch]
            replies = [list(prefix.served_ids[: prefix.num_positions]) for prefix in batch]
            rows = self._call(system.forced_decode, prompts, replies)
            return self._validated([prefix.request for prefix in batch], rows)
        raise EngineError(
            f"the system {self._name!r} is a function and cannot be decoded along {len(batch)} recorded replies",
            why="forced decode shows what stock serves token by token",
            fix="give it a method forced_decode (docs/engines.md), or take a baseline such as transformers",
            code="LG0213",
        )

    def close(self) -> None:
        """Nothing to give back: what the function holds is its author's."""

    def _served(self, batches: Sequence[Sequence[Request]]) -> Iterator[ServedOutput]:
        for batch in batches:
            sent_ns = time.monotonic_ns()
            prompts = [list(request.prompt_ids) for request in batch]
            replies = self._call(self._generate, prompts, batch[0].sampling.max_tokens)
            arrived_ns = time.monotonic_ns()
            for request, ids in zip(batch, self._validated(batch, replies), strict=True):
                yield _output(request, ids, sent_ns=sent_ns, arrived_ns=arrived_ns)

    def _call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        try:
            return function(*arguments)
        except Exception as error:  # boundary: foreign code may raise anything; chained, never hidden
            raise EngineError(
                f"the function of the system {self._name!r} raised {type(error).__name__}: {error}",
                why="the replies that are missing could be the ones that differ",
                fix="repair the function; finished replies are kept for --resume",
                code="LG0214",
            ) from error

    def _validated(self, batch: Sequence[Request], replies: Any) -> list[tuple[int, ...]]:
        if not isinstance(replies, Sequence) and not hasattr(replies, "__iter__"):
            raise self._bad(f"returned a {type(replies).__name__}")
        rows = list(replies)
        if len(rows) != len(batch):
            raise self._bad(f"returned {len(rows)} replies to {len(batch)} prompts")
        return [self._token_ids(request, row) for request, row in zip(batch, rows, strict=True)]

    def _token_ids(self, request: Request, row: Any) -> tuple[int, ...]:
        if isinstance(row, (str, bytes)) or not hasattr(row, "__iter__"):
            raise self._bad(f"returned a {type(row).__name__} as the reply to {request.id!r}")
        values = row.tolist() if hasattr(row, "tolist") else list(row)
        if not isinstance(values, list):
            raise self._bad(f"returned a single value as the reply to {request.id!r}")
        return tuple(self._token_id(request, value) for value in values)

    def _token_id(self, request: Request, value: Any) -> int:
        item = value.item() if hasattr(value, "item") else value  # numpy and torch integers of zero dimensions
        if isinstance(item, bool) or not isinstance(item, Integral):
            raise self._bad(f"returned {value!r} in the reply to {request.id!r}")
        if item < 0:
            raise self._bad(f"returned the negative id {int(item)} in the reply to {request.id!r}")
        return int(item)

    def _bad(self, found: str) -> EngineError:
        return EngineError(
            f"the function of the system {self._name!r} {found}",
            why="only token ids can be judged",
            fix="return one list of token ids (new tokens only, no prompt) per prompt, in the order of the prompts",
            code="LG0215",
        )


def create(spec: EngineSpec) -> CallableEngine:
    """The factory behind the entry point ``callable``: ``engine = "callable"``, ``target = "module:function"``.

    Options: ``target``, ``batch_size`` (prompts per call, default 64), ``logit_dtype`` (of the logits behind the
    function; default float32). Raises UsageError LG0204 or LG0205.
    """
    refuse_unknown(spec, ("target", "batch_size", "logit_dtype"))
    read = OptionReader(spec.name, spec.options)
    target = read.optional_text("target")
    if target is None or not all(target.partition(":")):
        raise bad_option(spec.name, f'has target = {target!r}; the callable engine needs "module:function"')
    return CallableEngine(
        spec.name,
        cast("Generate", Extension(target=target).load()),
        batch_size=read.positive("batch_size", DEFAULT_BATCH_SIZE),
        logit_dtype=read.choice("logit_dtype", "float32", LOGIT_DTYPES),
    )


def _batches(requests: Sequence[Request], size: int) -> list[list[Request]]:
    groups: dict[int, list[Request]] = {}
    for request in requests:
        groups.setdefault(request.sampling.max_tokens, []).append(request)
    return [group[at : at + size] for group in groups.values() for at in range(0, len(group), size)]


def _output(request: Request, ids: tuple[int, ...], *, sent_ns: int, arrived_ns: int) -> ServedOutput:
    stopped = bool(ids) and ids[-1] in request.sampling.stop_ids
    finish = FinishReason.STOP if stopped else FinishReason.ABORT
    if not stopped and len(ids) == request.sampling.max_tokens:
        finish = FinishReason.LENGTH
    return ServedOutput(
        request_id=request.id,
        ids=ids,
        finish_reason=finish,
        stop_reason=ids[-1] if stopped else None,
        sent_ns=sent_ns,
        arrival_ns=(arrived_ns,) * len(ids),
    )
