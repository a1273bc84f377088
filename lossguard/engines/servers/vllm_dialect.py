"""vLLM's ``/v1/completions``: token ids in, token ids out (``return_token_ids``).

Seen with vLLM 0.32: the stop token is among ``token_ids``; the text leaves it out; top log-probabilities have the
keys ``token_id:N`` and hold the served token beside the best ones; a stream ends with usage and ``[DONE]``.
"""

from __future__ import annotations

from typing import Any

from lossguard.engines.servers.dialect import SHARED_SAMPLING, DialectFacts, Question
from lossguard.engines.servers.grammar import structured_outputs
from lossguard.engines.servers.json_view import JsonView
from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.engines.servers.reply import PROMPT_DIFFERS, Reply
from lossguard.records import FinishReason, Request, ServedOutput, Usage

TOKEN_KEY = "token_id:"
FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
FACTS = DialectFacts(
    name="vllm",
    sampling=SHARED_SAMPLING | {"min_tokens"},
    max_logprobs=20,
    seeds=True,
    telemetry=frozenset({"cached", "server_drafts", "server_accepted", "server_preempted", "server_cached"}),
    fact_paths=("/version", "/v1/models"),
    fact_keys=("version", "data.id", "data.root", "data.max_model_len"),
    package="vllm",
    counters={
        "vllm:spec_decode_num_draft_tokens_total": "drafts",
        "vllm:spec_decode_num_accepted_tokens_total": "accepted",
        "vllm:num_preemptions_total": "preempted",
        "vllm:prefix_cache_hits_total": "cached",
    },
)


class VllmDialect:
    """See ``dialect.Dialect`` for the contract of each method."""

    facts = FACTS

    def question(self, request: Request, model_name: str | None, *, stream: bool) -> Question:
        """The body with every parameter written out."""
        asked = request.sampling
        body: dict[str, Any] = {
            "model": model_name,
            "prompt": list(request.prompt_ids),
            "max_tokens": asked.max_tokens,
            "min_tokens": asked.min_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "top_k": asked.top_k or -1,
            "min_p": asked.min_p,
            "repetition_penalty": asked.repetition_penalty,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "stop": list(asked.stop_strings),
            "stop_token_ids": [] if asked.ignore_eos else list(asked.stop_ids),
            "ignore_eos": asked.ignore_eos,
            "logit_bias": {str(token): bias for token, bias in asked.logit_bias} or None,
            "seed": asked.seed,
            "n": 1,
            "stream": stream,
            "add_special_tokens": False,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "logprobs": asked.logprobs or None,
            **({"stream_options": {"include_usage": True}} if stream else {}),
            **structured_outputs(asked.grammar),
        }
        return Question(path="/v1/completions", body=body)

    def reader(self, request: Request, *, stream: bool) -> VllmReader:
        """A reader for the reply."""
        return VllmReader(request)


class VllmReader:
    """Whole replies and streams have the same members; a stream gives the new part in each event."""

    def __init__(self, request: Request) -> None:
        self._reply = Reply(request)

    def feed(self, message: JsonView, arrived_ns: int) -> None:
        """One completion object."""
        if (error := message.optional("error")) is not None:
            raise MalformedReplyError(f"an error in place of a reply: {str(error.value)[:200]}")
        choices = message.member("choices").items()
        if len(choices) > 1:
            raise MalformedReplyError(f"{len(choices)} choices for n = 1")
        if choices:
            self._choice(choices[0], arrived_ns)
        if (usage := message.optional("usage")) is not None:
            self._usage(usage)

    def output(self, sent_ns: int) -> ServedOutput:
        """The finished reply."""
        if self._reply.usage is None:
            raise MalformedReplyError("it has no usage, which was asked for")
        return self._reply.output(sent_ns)

    def _choice(self, choice: JsonView, arrived_ns: int) -> None:
        reply = self._reply
        if (index := choice.optional("index")) is not None and index.integer() != 0:
            raise MalformedReplyError(f"choice {index.integer()} for n = 1")
        reply.add_tokens(choice.member("token_ids").integers(), arrived_ns)
        reply.add_text(choice.member("text").text())
        if (prompt := choice.optional("prompt_token_ids")) is not None:
            differs = tuple(prompt.integers()) != reply.request.prompt_ids
            reply.telemetry[PROMPT_DIFFERS] = (float(differs),)
        if (logprobs := choice.optional("logprobs")) is not None:
            self._logprobs(logprobs)
        if (finish := choice.optional("finish_reason")) is not None:
            reply.end(finish_reason(finish), stop_reason(choice.optional("stop_reason")))

    def _logprobs(self, logprobs: JsonView) -> None:
        self._reply.served_logprobs += [item.number() for item in logprobs.member("token_logprobs").items()]
        if (tops := logprobs.optional("top_logprobs")) is None:
            return
        for row in tops.items():
            pairs = [] if row.value is None else row.pairs()
            self._reply.add_top({token_of_key(key): value.number() for key, value in pairs})

    def _usage(self, usage: JsonView) -> None:
        details = usage.optional("prompt_tokens_details")
        cached = None if details is None else details.optional("cached_tokens")
        thinking = usage.optional("completion_tokens_details")
        reasoning = None if thinking is None else thinking.optional("reasoning_tokens")
        self._reply.usage = Usage(
            prompt_tokens=usage.member("prompt_tokens").integer(),
            completion_tokens=usage.member("completion_tokens").integer(),
            cached_tokens=None if cached is None else cached.integer(),
            reasoning_tokens=None if reasoning is None else reasoning.integer(),
        )
        if cached is not None:
            self._reply.telemetry["cached"] = (float(cached.integer()),)


def finish_reason(view: JsonView) -> FinishReason:
    """The finish reason of an OpenAI-like reply."""
    word = view.text()
    if word not in FINISH:
        raise MalformedReplyError(f"{view.path} is {word[:80]!r}, which is no finish reason")
    return FINISH[word]


def stop_reason(view: JsonView | None) -> int | str | None:
    """A token id, a stop string, or nothing (the model's own end of sequence)."""
    if view is None:
        return None
    return view.text() if isinstance(view.value, str) else view.integer()


def token_of_key(key: str) -> int:
    """The id in ``token_id:N``."""
    digits = key.removeprefix(TOKEN_KEY)
    if digits == key or not digits.isascii() or not digits.isdigit() or len(digits) > 18:
        raise MalformedReplyError(f"a top log-probability has the key {key[:80]!r}, not {TOKEN_KEY}N")
    return int(digits)
