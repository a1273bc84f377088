"""How each kind of server writes a reply, as recorded from SGLang 0.5.20, vLLM 0.32 and llama-server b11434."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from tests.engines.servers.parameters import parameters_of
from tests.engines.servers.spoken import Asked, Spoken, text_of

DONE = "data: [DONE]\n\n"


def event(value: Any) -> str:
    """One server-sent event."""
    return f"data: {json.dumps(value)}\n\n"


@dataclass(frozen=True)
class Part:
    """Tokens ``start:end`` of a reply, sent together."""

    start: int
    end: int
    is_last: bool


def parts(spoken: Spoken, block: int) -> list[Part]:
    """The reply in blocks, as speculation makes them."""
    count = max(1, -(-len(spoken.ids) // block))
    return [
        Part(number * block, min((number + 1) * block, len(spoken.ids)), number == count - 1) for number in range(count)
    ]


def _text_part(spoken: Spoken, part: Part) -> str:
    """The text of a part; the last one brings whatever is left, so that text faults reach the stream too."""
    before = len(text_of(spoken.ids[: part.start]))
    return spoken.text[before:] if part.is_last else spoken.text[before : len(text_of(spoken.ids[: part.end]))]


class Writer(Protocol):
    """How one kind of server reads a request and writes a reply."""

    path: str

    def asked(self, body: Mapping[str, Any]) -> Asked: ...

    def whole(self, spoken: Spoken, asked: Asked) -> dict[str, Any]: ...

    def stream(self, spoken: Spoken, asked: Asked, block: int) -> Iterator[str]: ...


class SglangWriter:
    path = "/generate"

    def asked(self, body: Mapping[str, Any]) -> Asked:
        sampling = body["sampling_params"]
        return Asked(
            prompt_ids=tuple(body["input_ids"]),
            max_tokens=sampling["max_new_tokens"],
            min_tokens=sampling["min_new_tokens"],
            stop_ids=tuple(sampling["stop_token_ids"]),
            ignore_eos=sampling["ignore_eos"],
            num_top=body.get("top_logprobs_num", 0) if body.get("return_logprob") else 0,
            stream=body["stream"],
            raw=body,
        )

    def whole(self, spoken: Spoken, asked: Asked) -> dict[str, Any]:
        return self._upto(spoken, asked, len(spoken.ids), is_last=True)

    def stream(self, spoken: Spoken, asked: Asked, block: int) -> Iterator[str]:
        for part in parts(spoken, block):
            yield event(self._upto(spoken, asked, part.end, is_last=part.is_last))
        yield DONE

    def _upto(self, spoken: Spoken, asked: Asked, end: int, *, is_last: bool) -> dict[str, Any]:
        finish: dict[str, Any] | None = None
        if is_last:
            finish = {"type": spoken.finish}
            finish |= {"matched": spoken.matched} if spoken.finish == "stop" else {}
            finish |= {"length": len(spoken.ids)} if spoken.finish == "length" else {}
            finish |= {"message": "gave up"} if spoken.finish == "abort" else {}
        meta: dict[str, Any] = {
            "finish_reason": finish,
            "prompt_tokens": spoken.prompt_tokens,
            "completion_tokens": spoken.completion_tokens if is_last else end,
            "cached_tokens": spoken.cached,
            "reasoning_tokens": spoken.reasoning,
            "num_retractions": spoken.preempted,
            "spec_verify_ct": 3,
            "spec_num_proposed_drafts": spoken.drafts,
            "spec_num_correct_drafts": spoken.accepted,
        }
        if asked.num_top:
            rows = zip(spoken.served[:end], spoken.ids[:end], strict=False)
            meta["output_token_logprobs"] = [[value, token, None] for value, token in rows]
            meta["output_top_logprobs"] = [
                [[value, token, None] for token, value in row[: asked.num_top]] for row in spoken.top[:end]
            ]
        text = spoken.text if is_last else text_of(spoken.ids[:end])
        return {"text": text, "output_ids": list(spoken.ids[:end]), "meta_info": meta}


class VllmWriter:
    path = "/v1/completions"
    with_ids = True

    def asked(self, body: Mapping[str, Any]) -> Asked:
        return Asked(
            prompt_ids=tuple(body["prompt"]),
            max_tokens=body["max_tokens"],
            min_tokens=body.get("min_tokens", 0),
            stop_ids=tuple(body.get("stop_token_ids", (0,))),
            ignore_eos=body.get("ignore_eos", False),
            num_top=body.get("logprobs") or 0,
            stream=body["stream"],
            stop_strings=tuple(body.get("stop") or ()),
            parameters=parameters_of(body),
            raw=body,
        )

    def whole(self, spoken: Spoken, asked: Asked) -> dict[str, Any]:
        choice = self._choice(spoken, asked, Part(0, len(spoken.ids), is_last=True))
        return {"id": "cmpl-1", "choices": [choice], "usage": self._usage(spoken)}

    def stream(self, spoken: Spoken, asked: Asked, block: int) -> Iterator[str]:
        for part in parts(spoken, block):
            yield event({"id": "cmpl-1", "choices": [self._choice(spoken, asked, part)]})
        yield event({"id": "cmpl-1", "choices": [], "usage": self._usage(spoken)})
        yield DONE

    def _choice(self, spoken: Spoken, asked: Asked, part: Part) -> dict[str, Any]:
        span = slice(part.start, part.end)
        choice: dict[str, Any] = {
            "index": 0,
            "text": _text_part(spoken, part),
            "logprobs": None,
            "finish_reason": spoken.finish if part.is_last else None,
            "stop_reason": spoken.matched if part.is_last and isinstance(spoken.matched, str) else None,
        }
        if self.with_ids:
            choice["token_ids"] = list(spoken.ids[span])
            choice["prompt_token_ids"] = list(spoken.prompt_ids) if part.start == 0 else None
        if asked.num_top and self.with_ids:
            choice["logprobs"] = {
                "token_logprobs": list(spoken.served[span]),
                "tokens": [f"token_id:{token}" for token in spoken.ids[span]],
                "top_logprobs": [
                    {f"token_id:{token}": value for token, value in row[: asked.num_top]} for row in spoken.top[span]
                ],
            }
        return choice

    def _usage(self, spoken: Spoken) -> dict[str, Any]:
        details = {"cached_tokens": spoken.cached} if spoken.cached else None
        return {
            "prompt_tokens": spoken.prompt_tokens,
            "completion_tokens": spoken.completion_tokens,
            "total_tokens": spoken.prompt_tokens + spoken.completion_tokens,
            "prompt_tokens_details": details,
            "completion_tokens_details": {"reasoning_tokens": spoken.reasoning} if spoken.reasoning else None,
        }


class OpenaiWriter(VllmWriter):
    with_ids = False


class LlamacppWriter:
    path = "/completion"

    def asked(self, body: Mapping[str, Any]) -> Asked:
        return Asked(
            prompt_ids=tuple(body["prompt"]),
            max_tokens=body["n_predict"],
            stop_ids=(0,),
            ignore_eos=body["ignore_eos"],
            num_top=body["n_probs"],
            stream=body["stream"],
            raw=body,
        )

    def whole(self, spoken: Spoken, asked: Asked) -> dict[str, Any]:
        part = Part(0, len(spoken.ids), is_last=True)
        return {**self._part(spoken, asked, part), **self._end(spoken), "stop": True}

    def stream(self, spoken: Spoken, asked: Asked, block: int) -> Iterator[str]:
        for part in parts(spoken, block):
            yield event(self._part(spoken, asked, part))
        yield event({"index": 0, "content": "", "tokens": [], "stop": True, **self._end(spoken)})

    def _part(self, spoken: Spoken, asked: Asked, part: Part) -> dict[str, Any]:
        body: dict[str, Any] = {
            "index": 0,
            "content": _text_part(spoken, part),
            "tokens": list(spoken.ids[part.start : part.end]),
            "stop": False,
        }
        if asked.num_top:
            rows = zip(spoken.ids, spoken.served, spoken.top, strict=False)
            body["completion_probabilities"] = [
                {
                    "id": token,
                    "logprob": value,
                    "top_logprobs": [{"id": item, "logprob": number} for item, number in top[: asked.num_top]],
                }
                for token, value, top in list(rows)[part.start : part.end]
            ]
        return body

    def _end(self, spoken: Spoken) -> dict[str, Any]:
        kinds = {"stop": "eos", "length": "limit", "abort": "none"}
        word = isinstance(spoken.matched, str)
        return {
            "stop_type": "word" if word else kinds[spoken.finish],
            "stopping_word": spoken.matched if word else "",
            "tokens_predicted": spoken.completion_tokens,
            "tokens_evaluated": spoken.prompt_tokens,
            "timings": {"cache_n": spoken.cached, "draft_n": spoken.drafts, "draft_n_accepted": spoken.accepted},
        }


WRITERS: Mapping[str, type[Writer]] = {
    "sglang": SglangWriter,
    "vllm": VllmWriter,
    "llamacpp": LlamacppWriter,
    "openai": OpenaiWriter,
}
