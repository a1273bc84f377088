"""llama.cpp's ``/completion``: token ids in, ``tokens`` and ``completion_probabilities`` out.

It stops at the end-of-generation ids of its own model file; other stop ids cannot be told to it. The order of its
samplers is set so that nothing but temperature and the filters that were asked for acts.

Seen with b11434: a stream leaves out the ids of tokens that end within a character, whole replies have them all.
Neither has log-probabilities for such a token, nor real ones for a token that was verified beside a draft.
"""

from __future__ import annotations

import math
from typing import Any

from lossguard.engines.servers.dialect import SHARED_SAMPLING, DialectFacts, Question
from lossguard.engines.servers.grammar import llamacpp_grammar
from lossguard.engines.servers.json_view import JsonView
from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.engines.servers.reply import Reply
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput, Usage

FINISH = {"eos": FinishReason.STOP, "word": FinishReason.STOP, "limit": FinishReason.LENGTH}
FACTS = DialectFacts(
    name="llamacpp",
    sampling=SHARED_SAMPLING,
    max_logprobs=20,
    seeds=True,
    telemetry=frozenset({"drafts", "accepted", "cached"}),
    ends_with_done=False,
    default_logit_dtype="float32",
    streams_all_ids=False,
    fact_paths=("/props",),
    fact_keys=("build_info", "model_path", "total_slots", "default_generation_settings.n_ctx"),
    version_argument="--version",
)


class LlamacppDialect:
    """See ``dialect.Dialect`` for the contract of each method."""

    facts = FACTS

    def question(self, request: Request, model_name: str | None, *, stream: bool) -> Question:
        """The body with every parameter written out."""
        asked = request.sampling
        body: dict[str, Any] = {
            "prompt": list(request.prompt_ids),
            "n_predict": asked.max_tokens,
            "temperature": asked.temperature,
            "samplers": _samplers(asked),
            "top_k": asked.top_k,
            "top_p": asked.top_p,
            "min_p": asked.min_p,
            "typical_p": 1.0,
            "repeat_penalty": asked.repetition_penalty,
            "repeat_last_n": _penalised_tokens(request),
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "dry_multiplier": 0.0,
            "xtc_probability": 0.0,
            "mirostat": 0,
            "stop": list(asked.stop_strings),
            "ignore_eos": asked.ignore_eos,
            "logit_bias": [[token, bias] for token, bias in asked.logit_bias],
            "n_probs": asked.logprobs,
            "post_sampling_probs": False,
            "return_tokens": True,
            "cache_prompt": True,
            "timings_per_token": False,
            "stream": stream,
            **({"seed": asked.seed} if asked.seed is not None else {}),
            **llamacpp_grammar(asked.grammar),
        }
        if model_name is not None:
            body["model"] = model_name
        return Question(path="/completion", body=body)

    def reader(self, request: Request, *, stream: bool) -> LlamacppReader:
        """A reader for the reply."""
        return LlamacppReader(request, stream=stream)


class LlamacppReader:
    """A stream gives the new part in each event; its last one has ``stop`` true and the counts."""

    def __init__(self, request: Request, *, stream: bool) -> None:
        self._reply = Reply(request)
        self._stream = stream

    def feed(self, message: JsonView, arrived_ns: int) -> None:
        """A whole reply or one event."""
        if (error := message.optional("error")) is not None:
            raise MalformedReplyError(f"an error in place of a reply: {str(error.value)[:200]}")
        ids = message.member("tokens").integers()
        self._reply.add_tokens(ids, arrived_ns)
        self._reply.add_text(message.member("content").text())
        if self._reply.request.sampling.logprobs:
            rows = message.optional("completion_probabilities")
            self._logprobs([] if rows is None else rows.items(), ids)
        stop = message.member("stop").value
        if not isinstance(stop, bool):
            raise MalformedReplyError("$.stop is neither true nor false")
        if stop:
            self._last(message)

    def output(self, sent_ns: int) -> ServedOutput:
        """The finished reply."""
        return self._reply.output(sent_ns)

    def _logprobs(self, rows: list[JsonView], ids: list[int]) -> None:
        """Rows name their tokens. A token without one (within a character, or after a draft) has NaN for it.

        So what is missing shows where it is missing, and every other value stays with its token.
        """
        reply, at = self._reply, 0
        for token in ids:
            is_there = at < len(rows) and rows[at].member("id").integer() == token
            if is_there:
                self._row(rows[at])
                at += 1
            else:
                reply.served_logprobs.append(math.nan)
                reply.add_top({})
        for row in rows[at:]:
            self._row(row)

    def _row(self, row: JsonView) -> None:
        self._reply.served_logprobs.append(row.member("logprob").number())
        tops = row.optional("top_logprobs")
        pairs = [] if tops is None else tops.items()
        self._reply.add_top({pair.member("id").integer(): pair.member("logprob").number() for pair in pairs})

    def _last(self, message: JsonView) -> None:
        reply = self._reply
        word = message.member("stop_type").text()
        if word not in FINISH:
            raise MalformedReplyError(f"$.stop_type is {word[:80]!r}, which is no reason to stop")
        reply.end(FINISH[word], message.member("stopping_word").text() if word == "word" else None)
        timings = message.optional("timings")
        cached = None if timings is None else timings.optional("cache_n")
        reply.usage = Usage(
            prompt_tokens=message.member("tokens_evaluated").integer(),
            completion_tokens=message.member("tokens_predicted").integer(),
            cached_tokens=None if cached is None else cached.integer(),
        )
        if cached is not None:
            reply.telemetry["cached"] = (float(cached.integer()),)
        for column, name in (("drafts", "draft_n"), ("accepted", "draft_n_accepted")):
            if timings is not None and (value := timings.optional(name)) is not None:
                reply.telemetry[column] = (float(value.integer()),)


def _penalised_tokens(request: Request) -> int:
    """How far back penalties look: over all of prompt and reply, which -1 meant until servers began to refuse it."""
    return len(request.prompt_ids) + request.sampling.max_tokens if _has_penalties(request.sampling) else 0


def _has_penalties(asked: SamplingParams) -> bool:
    return asked.repetition_penalty != 1.0 or asked.presence_penalty != 0.0 or asked.frequency_penalty != 0.0


def _samplers(asked: SamplingParams) -> list[str]:
    """Filters after temperature, as the other servers apply them; penalties first where there are any."""
    named = (
        ("penalties", _has_penalties(asked)),
        ("temperature", True),
        ("top_k", asked.top_k),
        ("top_p", asked.top_p != 1.0),
        ("min_p", asked.min_p),
    )
    return [name for name, is_wanted in named if is_wanted]
