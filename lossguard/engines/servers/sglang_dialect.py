"""SGLang's native ``/generate``: token ids in, ``output_ids`` and ``meta_info`` out.

Seen with SGLang 0.5.20: the stop token is among ``output_ids``; a stream repeats everything so far in every event
(servers started with incremental output send the new part only; ``completion_tokens`` tells which it is); the text
leaves the stop token out; log-probabilities are ``[value, id, text or null]``.
"""

from __future__ import annotations

from typing import Any

from lossguard.engines.servers.dialect import SHARED_SAMPLING, DialectFacts, Question
from lossguard.engines.servers.grammar import sglang_grammar
from lossguard.engines.servers.json_view import JsonView
from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.engines.servers.reply import Reply
from lossguard.records import FinishReason, Request, ServedOutput, Usage

FINISH = {"stop": FinishReason.STOP, "length": FinishReason.LENGTH, "abort": FinishReason.ABORT}
TELEMETRY = {  # column -> members of meta_info that hold it, newest name first
    "drafts": ("spec_num_proposed_drafts", "spec_proposed_drafts", "spec_draft_token_num"),
    "accepted": ("spec_num_correct_drafts", "spec_accepted_drafts", "spec_accept_token_num"),
    "verify_steps": ("spec_verify_ct",),
    "preempted": ("num_retractions",),
    "cached": ("cached_tokens",),
}
FACTS = DialectFacts(
    name="sglang",
    sampling=SHARED_SAMPLING | {"min_tokens"},
    max_logprobs=20,
    seeds=False,  # sampling_seed acts only under --enable-deterministic-inference
    telemetry=frozenset(TELEMETRY),
    fact_paths=("/server_info",),
    fact_keys=(
        "version",
        "model_path",
        "dtype",
        "kv_cache_dtype",
        "quantization",
        "enable_fp32_lm_head",
        "attention_backend",
        "sampling_backend",
        "tp_size",
        "dp_size",
        "speculative_algorithm",
        "speculative_num_draft_tokens",
        "disable_radix_cache",
        "chunked_prefill_size",
        "disable_cuda_graph",
        "weight_version",
    ),
    package="sglang",
)


class SglangDialect:
    """See ``dialect.Dialect`` for the contract of each method."""

    facts = FACTS

    def question(self, request: Request, model_name: str | None, *, stream: bool) -> Question:
        """The body with every parameter written out."""
        asked = request.sampling
        sampling: dict[str, Any] = {
            "max_new_tokens": asked.max_tokens,
            "min_new_tokens": asked.min_tokens,
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
            "n": 1,
            "skip_special_tokens": False,
            "spaces_between_special_tokens": False,
            **({"logit_bias": {str(token): bias for token, bias in asked.logit_bias}} if asked.logit_bias else {}),
            **({"sampling_seed": asked.seed} if asked.seed is not None else {}),
            **sglang_grammar(asked.grammar),
        }
        body: dict[str, Any] = {"input_ids": list(request.prompt_ids), "sampling_params": sampling, "stream": stream}
        if asked.logprobs:
            body |= {"return_logprob": True, "top_logprobs_num": asked.logprobs, "logprob_start_len": -1}
        if model_name is not None:
            body["model"] = model_name
        return Question(path="/generate", body=body)

    def reader(self, request: Request, *, stream: bool) -> SglangReader:
        """A reader for the reply."""
        return SglangReader(request)


class SglangReader:
    """Events that repeat and events that continue are told apart by the server's own count of tokens."""

    def __init__(self, request: Request) -> None:
        self._reply = Reply(request)
        self._repeats = True

    def feed(self, message: JsonView, arrived_ns: int) -> None:
        """A whole reply or one event."""
        if (error := message.optional("error")) is not None:
            raise MalformedReplyError(f"an error in place of a reply: {str(error.value)[:200]}")
        meta = message.member("meta_info")
        finish = meta.optional("finish_reason")
        if finish is not None and finish.member("type").text() == "abort":
            self._abort(finish)
            return
        self._tokens(message.member("output_ids").integers(), meta, arrived_ns)
        if (text := message.optional("text")) is not None:
            self._text(text.text())
        self._logprobs(meta)
        self._usage(meta)
        if finish is not None:
            self._finish(finish)

    def output(self, sent_ns: int) -> ServedOutput:
        """The finished reply."""
        return self._reply.output(sent_ns)

    def _tokens(self, ids: list[int], meta: JsonView, arrived_ns: int) -> None:
        """Only ids that repeat or continue what came before exactly are taken."""
        known, total = self._reply.ids, meta.member("completion_tokens").count()
        if len(ids) == total and ids[: len(known)] == known:
            new, self._repeats = ids[len(known) :], True
        elif len(known) + len(ids) == total:
            new, self._repeats = ids, False
        elif not meta.optional("finish_reason"):
            raise MalformedReplyError(
                f"an event with {len(ids)} ids after {len(known)}, where completion_tokens is {total}"
            )
        else:  # a wrong count at the end is for the usage check: take the ids as the stream so far was sent
            self._repeats = self._repeats and ids[: len(known)] == known
            new = ids[len(known) :] if self._repeats else ids
        self._reply.add_tokens(new, arrived_ns)

    def _text(self, text: str) -> None:
        if self._repeats:
            self._reply.text = text
        else:
            self._reply.add_text(text)

    def _logprobs(self, meta: JsonView) -> None:
        reply = self._reply
        if (rows := meta.optional("output_token_logprobs")) is None:
            return
        values = [_pair(row) for row in rows.items()]
        tops_view = meta.optional("output_top_logprobs")
        tops = [] if tops_view is None else tops_view.items()
        if self._repeats:
            reply.served_logprobs, reply.top_ids, reply.top_logprobs = [], [], []
        reply.served_logprobs += [value for _, value in values]
        for top in tops:
            reply.add_top(dict(_pair(row) for row in ([] if top.value is None else top.items())))

    def _usage(self, meta: JsonView) -> None:
        reasoning, cached = meta.optional("reasoning_tokens"), meta.optional("cached_tokens")
        self._reply.usage = Usage(
            prompt_tokens=meta.member("prompt_tokens").integer(),
            completion_tokens=meta.member("completion_tokens").integer(),
            reasoning_tokens=None if reasoning is None else reasoning.integer(),
            cached_tokens=None if cached is None else cached.integer(),
        )
        for column, names in TELEMETRY.items():
            found = [view for name in names if (view := meta.optional(name)) is not None]
            if found:
                self._reply.telemetry[column] = (float(found[0].integer()),)

    def _finish(self, finish: JsonView) -> None:
        word = finish.member("type").text()
        if word not in FINISH:
            raise MalformedReplyError(f"{finish.path}.type is {word[:80]!r}, which is no finish reason")
        matched = finish.optional("matched") if word == "stop" else None
        reason: int | str | None = None
        if matched is not None:
            reason = matched.text() if isinstance(matched.value, str) else matched.integer()
        self._reply.end(FINISH[word], reason)

    def _abort(self, finish: JsonView) -> None:
        message = finish.optional("message")
        self._reply.end(FinishReason.ABORT, "aborted" if message is None else message.text()[:400])


def _pair(row: JsonView) -> tuple[int, float]:
    """(id, value) of ``[value, id, text]``."""
    items = row.items()
    if len(items) < 2:
        raise MalformedReplyError(f"{row.path} has {len(items)} items, not value and id")
    return items[1].integer(), items[0].number()
