"""llama.cpp's ``/completion``: token ids in, ``tokens`` and ``completion_probabilities`` out.

It stops at the end-of-generation ids of its own model file; other stop ids cannot be told to it. The order of its
samplers is set so that nothing but temperature and the filters that were asked for acts.
"""

from __future__ import annotations

from typing import Any

from lossguard.engines.servers.dialect import DialectFacts, Question
from lossguard.engines.servers.grammar import llamacpp_grammar
from lossguard.engines.servers.json_view import JsonView
from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.engines.servers.reply import Reply
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput, Usage

FINISH = {"eos": FinishReason.STOP, "word": FinishReason.STOP, "limit": FinishReason.LENGTH}
FACTS = DialectFacts(
    name="llamacpp",
    sampling=frozenset(
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
    ),
    max_logprobs=20,
    seeds=True,
    telemetry=frozenset({"drafts", "accepted", "cached"}),
    ends_with_done=False,
    default_logit_dtype="float32",
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
            "repeat_last_n": -1,
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
        self._reply.add_tokens(message.member("tokens").integers(), arrived_ns)
        self._reply.add_text(message.member("content").text())
        if (rows := message.optional("completion_probabilities")) is not None:
            self._logprobs(rows)
        stop = message.member("stop").value
        if not isinstance(stop, bool):
            raise MalformedReplyError("$.stop is neither true nor false")
        if stop:
            self._last(message)

    def output(self, sent_ns: int) -> ServedOutput:
        """The finished reply."""
        return self._reply.output(sent_ns)

    def _logprobs(self, rows: JsonView) -> None:
        for row in rows.items():
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


def _samplers(asked: SamplingParams) -> list[str]:
    """Filters after temperature, as the other servers apply them; penalties first where there are any."""
    named = (
        ("penalties", asked.repetition_penalty != 1.0 or asked.presence_penalty or asked.frequency_penalty),
        ("temperature", True),
        ("top_k", asked.top_k),
        ("top_p", asked.top_p != 1.0),
        ("min_p", asked.min_p),
    )
    return [name for name, is_wanted in named if is_wanted]
