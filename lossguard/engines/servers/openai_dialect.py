"""Any server that speaks OpenAI's ``/v1/completions`` and gives back text only.

The prompt goes out as token ids; the reply's text is cut into tokens again with the target's tokenizer. That is
*text-level evidence*: the ids need not be those that were served, so no verdict on it is ever PASS.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from lossguard.engines.servers.dialect import DialectFacts, Question
from lossguard.engines.servers.json_view import JsonView
from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.engines.servers.reply import Reply
from lossguard.engines.servers.vllm_dialect import finish_reason
from lossguard.errors import UsageError
from lossguard.records import Request, ServedOutput, Usage

if TYPE_CHECKING:
    from tokenizers import Tokenizer

FACTS = DialectFacts(
    name="openai",
    sampling=frozenset({"temperature", "top_p", "presence_penalty", "frequency_penalty", "stop_ids", "seed"}),
    max_logprobs=0,  # they come by text, which does not say which token is meant
    seeds=False,
    telemetry=frozenset(),
    token_ids_out=False,
    health="/v1/models",
    fact_paths=("/v1/models",),
    fact_keys=("data.id", "data.root"),
)


class OpenaiDialect:
    """See ``dialect.Dialect`` for the contract of each method."""

    facts = FACTS

    def __init__(self, model_path: str) -> None:
        self._model_path = model_path
        self._tokenizer: Tokenizer | None = None

    def question(self, request: Request, model_name: str | None, *, stream: bool) -> Question:
        """The parameters that every such server knows."""
        asked = request.sampling
        body: dict[str, Any] = {
            "model": model_name,
            "prompt": list(request.prompt_ids),
            "max_tokens": asked.max_tokens,
            "temperature": asked.temperature,
            "top_p": asked.top_p,
            "presence_penalty": asked.presence_penalty,
            "frequency_penalty": asked.frequency_penalty,
            "n": 1,
            "stream": stream,
            **({"seed": asked.seed} if asked.seed is not None else {}),
        }
        if stream:
            body["stream_options"] = {"include_usage": True}
        return Question(path="/v1/completions", body=body)

    def reader(self, request: Request, *, stream: bool) -> OpenaiReader:
        """A reader for the reply. Raises UsageError LG0234 if the model has no tokenizer.json."""
        if self._tokenizer is None:
            self._tokenizer = load_tokenizer(self._model_path)
        return OpenaiReader(request, self._tokenizer)


class OpenaiReader:
    """Text with the times at which its parts arrived; ids only once it is whole."""

    def __init__(self, request: Request, tokenizer: Tokenizer) -> None:
        self._reply = Reply(request)
        self._tokenizer = tokenizer
        self._parts: list[tuple[int, int]] = []  # (characters so far, arrival)

    def feed(self, message: JsonView, arrived_ns: int) -> None:
        """A whole reply or one event."""
        if (error := message.optional("error")) is not None:
            raise MalformedReplyError(f"an error in place of a reply: {str(error.value)[:200]}")
        choices = message.member("choices").items()
        if len(choices) > 1:
            raise MalformedReplyError(f"{len(choices)} choices for n = 1")
        for choice in choices:
            self._choice(choice, arrived_ns)
        if (usage := message.optional("usage")) is not None:
            self._reply.usage = Usage(
                prompt_tokens=usage.member("prompt_tokens").integer(),
                completion_tokens=usage.member("completion_tokens").integer(),
            )

    def output(self, sent_ns: int) -> ServedOutput:
        """The finished reply, its text as tokens."""
        text = self._reply.text or ""
        encoded = self._tokenizer.encode(text.encode("utf-8", "replace").decode(), add_special_tokens=False)
        finish, self._reply.finish = self._reply.finish, None
        for token, (_, end) in zip(encoded.ids, encoded.offsets, strict=True):
            self._reply.add_tokens([token], self._arrival(end))
        self._reply.finish = finish
        return self._reply.output(sent_ns)

    def _choice(self, choice: JsonView, arrived_ns: int) -> None:
        text = choice.member("text").text()
        if text and self._reply.finish is not None:
            raise MalformedReplyError("text came after the finish reason")
        self._reply.add_text(text)
        self._parts.append((len(self._reply.text or ""), arrived_ns))
        if (finish := choice.optional("finish_reason")) is not None:
            self._reply.end(finish_reason(finish), None)

    def _arrival(self, end: int) -> int:
        """When the part with that character arrived."""
        return next((at for length, at in self._parts if length >= end), self._parts[-1][1])


def load_tokenizer(model_path: str) -> Tokenizer:
    """The target's own tokenizer. Raises UsageError LG0234."""
    from tokenizers import Tokenizer

    path = Path(model_path) / "tokenizer.json"
    if not path.is_file():
        raise UsageError(
            f"{path} is missing",
            why="a server that gives text only can be judged no closer than its text, cut into the target's tokens",
            fix="give 'model' a folder with tokenizer.json, or use an engine that gives token ids",
            code="LG0234",
        )
    return Tokenizer.from_file(str(path))
