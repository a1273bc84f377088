"""How SGLang and vLLM are asked for the log-probabilities of a given reply, and how they answer.

Seen with SGLang 0.5.17 and 0.5.20: ``input_token_logprobs`` and ``input_top_logprobs`` have one entry per input from
``logprob_start_len`` on, the first of which has no value. With vLLM 0.32: ``prompt_logprobs`` has one entry per input,
null for the first; the others map ids to value and rank, the input's own beside the best ones.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from lossguard.engines.servers.dialect import DialectFacts, Question
from lossguard.engines.servers.json_view import JsonView
from lossguard.engines.servers.options import ServerOptions
from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.engines.servers.sglang_dialect import FACTS as SGLANG
from lossguard.engines.servers.vllm_dialect import FACTS as VLLM
from lossguard.scoring.servers.head import Head, sglang_head, vllm_head
from lossguard.scoring.servers.rows import PositionLogprobs

Told = Mapping[str, str]
"""What the server says about itself, as ``server_facts.told_facts`` gives it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForcedReply:
    """Token ids that are fed to a server as they stand; all of them exist."""

    prompt_ids: tuple[int, ...]
    ids: tuple[int, ...]  # of the reply

    @property
    def inputs(self) -> list[int]:
        """Everything that is sent."""
        return [*self.prompt_ids, *self.ids]


@dataclass(frozen=True, slots=True, kw_only=True)
class Form:
    """What is the same in all questions of one scorer."""

    top_k: int
    model_name: str | None
    from_prompt_end: bool  # begin at the reply, where no arm can read what another left in the cache


class ScoringDialect(Protocol):
    """One kind of scoring server."""

    @property
    def facts(self) -> DialectFacts:
        """Known without the server."""

    @property
    def has_ranks(self) -> bool:
        """Whether it tells the rank of a token that is not among the best."""

    def head(self, options: ServerOptions, told: Told) -> Head:
        """In what precision its logits are made, and how that is known."""

    def may_start_late(self, told: Told) -> bool:
        """Whether log-probabilities may begin at the reply without reading another request's cache."""

    def question(self, reply: ForcedReply, form: Form) -> Question:
        """Ask for one token after the reply, with the log-probabilities of what was sent."""

    def read(self, message: JsonView, reply: ForcedReply, form: Form) -> list[PositionLogprobs]:
        """One row per token of the reply. Raises MalformedReplyError for whatever is missing or does not fit."""


class SglangScoring:
    """See ``ScoringDialect`` for the contract of each method."""

    facts = SGLANG
    has_ranks = False

    def head(self, options: ServerOptions, told: Told) -> Head:
        """From ``/server_info``."""
        return sglang_head(options, told)

    def may_start_late(self, told: Told) -> bool:
        """Only without a radix cache: with it, the second arm would read the first one's prompt."""
        return told.get("/server_info disable_radix_cache") == "true"

    def question(self, reply: ForcedReply, form: Form) -> Question:
        """``/generate`` with input log-probabilities."""
        sampling = {"max_new_tokens": 1, "temperature": 0.0, "ignore_eos": True, "skip_special_tokens": False}
        body: dict[str, Any] = {
            "input_ids": reply.inputs,
            "sampling_params": sampling,
            "stream": False,
            "return_logprob": True,
            "logprob_start_len": _start(reply, form),
            "top_logprobs_num": form.top_k,
            "return_text_in_logprobs": False,
        }
        if form.model_name is not None:
            body["model"] = form.model_name
        return Question(path="/generate", body=body)

    def read(self, message: JsonView, reply: ForcedReply, form: Form) -> list[PositionLogprobs]:
        """From ``meta_info``: ids must be those that were sent, position by position."""
        _refuse_error(message)
        meta, expected = message.member("meta_info"), reply.inputs[_start(reply, form) :]
        if (count := meta.member("prompt_tokens").count()) != len(reply.inputs):
            raise MalformedReplyError(f"it read {count} tokens where {len(reply.inputs)} were sent")
        own = _rows(meta.member("input_token_logprobs"), len(expected))
        tops = _rows(meta.member("input_top_logprobs"), len(expected))
        rows = []
        for token, row, top in list(zip(expected, own, tops, strict=True))[-len(reply.ids) :]:
            found, value = _pair(row)
            if found != token:
                raise MalformedReplyError(f"{row.path} is about token {found}, where {token} was sent")
            rows.append(PositionLogprobs(token=token, logprob=value, top=tuple(_pair(item) for item in top.items())))
        return rows


class VllmScoring:
    """See ``ScoringDialect`` for the contract of each method."""

    facts = VLLM
    has_ranks = True

    def head(self, options: ServerOptions, told: Told) -> Head:
        """From the launch command, since the server does not tell."""
        return vllm_head(options)

    def may_start_late(self, told: Told) -> bool:
        """It has no such option: always the whole prompt, which never reads the cache."""
        return False

    def question(self, reply: ForcedReply, form: Form) -> Question:
        """``/v1/completions`` with prompt log-probabilities."""
        body = {
            "model": form.model_name,
            "prompt": reply.inputs,
            "max_tokens": 1,
            "temperature": 0.0,
            "ignore_eos": True,
            "stream": False,
            "add_special_tokens": False,
            "prompt_logprobs": form.top_k,
            "return_token_ids": True,
        }
        return Question(path="/v1/completions", body=body)

    def read(self, message: JsonView, reply: ForcedReply, form: Form) -> list[PositionLogprobs]:
        """From the only choice: the prompt that was read must be the one that was sent."""
        _refuse_error(message)
        choice = message.member("choices").only_item()
        if choice.member("prompt_token_ids").integers() != reply.inputs:
            raise MalformedReplyError("it read another prompt than the one that was sent")
        rows = _rows(choice.member("prompt_logprobs"), len(reply.inputs))[-len(reply.ids) :]
        return [_vllm_row(token, row, form.top_k) for token, row in zip(reply.ids, rows, strict=True)]


def _vllm_row(token: int, row: JsonView, top_k: int) -> PositionLogprobs:
    """The served token is listed beside the best ones, and is one of them where it ranks that high."""
    found = {_id_of_key(key): (item.member("logprob").number(), _rank(item)) for key, item in row.pairs()}
    if token not in found:
        raise MalformedReplyError(f"{row.path} lacks token {token}, which was sent there")
    value, rank = found[token]
    listed = [(other, logprob) for other, (logprob, place) in found.items() if other != token or place < top_k]
    return PositionLogprobs(token=token, logprob=value, top=tuple(listed), rank=rank)


def _rank(item: JsonView) -> int:
    """From 0; servers count from 1."""
    rank = item.member("rank").count()
    if rank < 1:
        raise MalformedReplyError(f"{item.path}.rank is {rank}")
    return rank - 1


def _id_of_key(key: str) -> int:
    if not key.isascii() or not key.isdigit() or len(key) > 18:
        raise MalformedReplyError(f"a best token has the key {key[:80]!r}, not an id")
    return int(key)


def _pair(row: JsonView) -> tuple[int, float]:
    """(id, value) of ``[value, id, text]``."""
    items = row.items()
    if len(items) < 2:
        raise MalformedReplyError(f"{row.path} has {len(items)} items, not value and id")
    return items[1].integer(), items[0].number()


def _rows(view: JsonView, expected: int) -> list[JsonView]:
    rows = view.items()
    if len(rows) != expected:
        raise MalformedReplyError(f"{view.path} has {len(rows)} entries, where {expected} tokens were asked about")
    return rows


def _start(reply: ForcedReply, form: Form) -> int:
    return len(reply.prompt_ids) - 1 if form.from_prompt_end else 0


def _refuse_error(message: JsonView) -> None:
    if (error := message.optional("error")) is not None:
        raise MalformedReplyError(f"an error in place of scores: {str(error.value)[:200]}")
