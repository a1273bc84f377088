"""What differs between servers: how a request is written, and how a reply is read."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from lossguard.engines.servers.json_view import JsonView
from lossguard.records import Request, ServedOutput

SHARED_SAMPLING = frozenset(
    {
        "temperature",
        "top_p",
        "top_k",
        "min_p",
        "repetition_penalty",
        "presence_penalty",
        "frequency_penalty",
        "stop_ids",
        "stop_strings",
        "ignore_eos",
        "logit_bias",
        "grammar",
        "seed",
    }
)
"""Parameters that SGLang, vLLM and llama.cpp all take."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DialectFacts:
    """What a kind of server can do."""

    name: str
    sampling: frozenset[str]  # SamplingParams fields, besides max_tokens and logprobs
    max_logprobs: int
    seeds: bool
    telemetry: frozenset[str]  # columns that may come with a reply
    token_ids_out: bool = True
    ends_with_done: bool = True  # its streams end with a "[DONE]" event
    streams_all_ids: bool = True  # False: only whole replies have every id, so they are what is asked for by default
    health: str = "/health"
    default_logit_dtype: str | None = None  # None: that of the model
    fact_paths: tuple[str, ...] = ()  # where the server tells about itself
    fact_keys: tuple[str, ...] = ()  # what of it may not change within a run
    version_argument: str | None = None  # makes its executable print a version
    package: str | None = None  # Python package whose version is the server's
    counters: Mapping[str, str] = field(default_factory=dict)  # name in /metrics -> telemetry column


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """An HTTP request."""

    path: str
    body: Mapping[str, Any]


class ReplyReader(Protocol):
    """Reads the messages of one reply; every method raises MalformedReplyError."""

    def feed(self, message: JsonView, arrived_ns: int) -> None:
        """One message: the whole reply, or one event of its stream."""

    def output(self, sent_ns: int) -> ServedOutput:
        """The finished reply."""


class Dialect(Protocol):
    """One kind of server."""

    @property
    def facts(self) -> DialectFacts:
        """Known without the server."""

    def question(self, request: Request, model_name: str | None, *, stream: bool) -> Question:
        """How the request is sent. Every sampling parameter is written out, so that no server default applies."""

    def reader(self, request: Request, *, stream: bool) -> ReplyReader:
        """A reader for the reply to it."""
