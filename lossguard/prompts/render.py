"""From prompts to requests: chat template, token ids, clusters."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from lossguard.errors import UsageError
from lossguard.prompts.base import Message, Prompt
from lossguard.prompts.clusters import BOUNDARY, cluster_labels
from lossguard.prompts.stop_ids import stop_ids_of
from lossguard.records import Request, SamplingParams

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = [
    "RenderedPrompt",
    "build_requests",
    "load_tokenizer",
    "prompt_clusters",
    "render",
    "shortest_system_message",
    "stop_ids_of",
]

SHORT_SYSTEM_MESSAGE = "You are helpful."
INSTALL_TRANSFORMERS = "pip install 'lossguard[transformers]' (or lossguard[tokenizer], where torch is not needed)"


@dataclass(frozen=True, slots=True, kw_only=True)
class RenderedPrompt:
    """A prompt as a model gets it.

    ``template_hash`` is the SHA-256 of the chat template's text, None where no template was applied.
    ``content_ids`` are what clusters are made from: the messages alone, -1 between them, without template and system
    message. ``reason`` says which form was rendered how.
    """

    ids: tuple[int, ...]
    template_hash: str | None
    content_ids: tuple[int, ...]
    reason: str


def load_tokenizer(model_path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer in a model folder; reads files only, never the network. Raises UsageError (LG0420)."""
    try:
        from transformers import AutoTokenizer
    except ImportError as error:
        problem = f"transformers is not installed ({error})"
        raise _no_tokenizer(model_path, problem, fix=INSTALL_TRANSFORMERS) from error
    try:
        tokenizer: PreTrainedTokenizerBase = AutoTokenizer.from_pretrained(str(model_path), local_files_only=True)
    except (OSError, ValueError, KeyError, ImportError) as error:
        raise _no_tokenizer(model_path, str(error)) from error
    return tokenizer


def render(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> RenderedPrompt:
    """Token ids of a prompt, ready for an engine to continue.

    Messages go through the chat template with the generation prompt added, and with the tools. Without a chat
    template (a base model) message texts are joined by blank lines, and ``reason`` says so. Raises UsageError:
    LG0421 where the template refuses the messages, LG0422 for ids outside the vocabulary, LG0424 for tools that
    cannot be given to the model.
    """
    if prompt.ids is not None:
        _require_known_ids(prompt, len(tokenizer))
        return RenderedPrompt(
            ids=prompt.ids,
            template_hash=None,
            content_ids=_outside_frame(prompt.ids, tokenizer),
            reason="token ids as given",
        )
    if prompt.messages is not None:
        return _render_messages(prompt, prompt.messages, tokenizer)
    _require_no_tools(prompt, "its form is text, which goes through no chat template")
    ids = _encode(prompt.text or "", tokenizer, add_special_tokens=True)
    return RenderedPrompt(
        ids=ids,
        template_hash=None,
        content_ids=_outside_frame(ids, tokenizer),
        reason="text as given, no chat template",
    )


def build_requests(
    prompts: Sequence[Prompt],
    tokenizer: PreTrainedTokenizerBase,
    sampling: SamplingParams,
    *,
    stop_ids: Sequence[int],
    repeats: int = 1,
) -> tuple[Request, ...]:
    """One request per prompt and repeat, in the order of ``prompts``, all repeats of a prompt beside each other.

    ``stop_ids`` (the model's end-of-sequence ids) are added to those in ``sampling``. Repeat r > 0 has the id
    ``math-017#r`` and the cluster of its prompt.
    """
    rendered = {prompt.id: render(prompt, tokenizer) for prompt in prompts}
    clusters = cluster_labels({name: item.content_ids for name, item in rendered.items()})
    stops = tuple(dict.fromkeys((*sampling.stop_ids, *stop_ids)))
    complete = dataclasses.replace(sampling, stop_ids=stops)
    return tuple(
        Request(
            id=prompt.id if repeat == 0 else f"{prompt.id}#{repeat}",
            prompt_ids=rendered[prompt.id].ids,
            sampling=complete,
            set=prompt.set,
            cluster=clusters[prompt.id],
            repeat_id=repeat,
            chat_template_hash=rendered[prompt.id].template_hash,
        )
        for prompt in prompts
        for repeat in range(repeats)
    )


def prompt_clusters(prompts: Iterable[Prompt], tokenizer: PreTrainedTokenizerBase) -> dict[str, str]:
    """Cluster of each prompt by shared 13-grams of its content ids: prompt id to the first member's id."""
    return cluster_labels({prompt.id: render(prompt, tokenizer).content_ids for prompt in prompts})


def shortest_system_message(tokenizer: PreTrainedTokenizerBase) -> tuple[str | None, str]:
    """A short system message where it makes prompts shorter, else None; and the reason.

    Some templates insert a long system message of their own unless one is given; others refuse system messages.
    """
    probe = (Message(role="user", content="Hello"),)
    given = (Message(role="system", content=SHORT_SYSTEM_MESSAGE), *probe)
    if tokenizer.chat_template is None:
        return None, "no system message: the tokenizer has no chat template"
    plain = len(render(Prompt(id="probe", set="probe", messages=probe), tokenizer).ids)
    try:
        short = len(render(Prompt(id="probe", set="probe", messages=given), tokenizer).ids)
    except UsageError:
        return None, "no system message: the chat template refuses system messages"
    if short < plain:
        return SHORT_SYSTEM_MESSAGE, f"a short system message saves {plain - short} tokens per prompt"
    return None, "no system message: the chat template adds none of its own"


def _render_messages(
    prompt: Prompt, messages: tuple[Message, ...], tokenizer: PreTrainedTokenizerBase
) -> RenderedPrompt:
    content = _content_ids(messages, tokenizer)
    if tokenizer.chat_template is None:
        _require_no_tools(prompt, "the tokenizer has no chat template")
        joined = "\n\n".join(message.content for message in messages)
        return RenderedPrompt(
            ids=_encode(joined, tokenizer, add_special_tokens=True),
            template_hash=None,
            content_ids=content,
            reason="the tokenizer has no chat template: message texts joined by blank lines",
        )
    text = _apply_template(prompt, messages, tokenizer)
    return RenderedPrompt(
        ids=_encode(text, tokenizer, add_special_tokens=False),
        template_hash=_template_hash(prompt, tokenizer),
        content_ids=content,
        reason="chat template applied, generation prompt added",
    )


def _apply_template(prompt: Prompt, messages: tuple[Message, ...], tokenizer: PreTrainedTokenizerBase) -> str:
    import jinja2

    try:
        text = tokenizer.apply_chat_template(
            [message.to_template() for message in messages],
            tools=[dict(tool) for tool in prompt.tools] or None,
            add_generation_prompt=True,
            tokenize=False,
        )
    except (jinja2.TemplateError, TypeError, ValueError, KeyError) as error:
        raise UsageError(
            f"prompt {prompt.id!r}: the model's chat template refuses its messages: {error}",
            why="token ids made in another way would not be what the model was trained on",
            fix="change the roles or tools of this prompt to what the template takes, or give prompt_ids",
            code="LG0421",
        ) from error
    if prompt.tools and text == tokenizer.apply_chat_template(
        [message.to_template() for message in messages], add_generation_prompt=True, tokenize=False
    ):
        _require_no_tools(prompt, "the model's chat template ignores tools")
    return str(text)


def _template_hash(prompt: Prompt, tokenizer: PreTrainedTokenizerBase) -> str:
    template = tokenizer.get_chat_template(tools=[dict(tool) for tool in prompt.tools] or None)
    return hashlib.sha256(str(template).encode("utf-8")).hexdigest()


def _content_ids(messages: tuple[Message, ...], tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids of the messages' own texts. System messages belong to the deployment, not to the prompt, unless alone."""
    own = [message for message in messages if message.role not in ("system", "developer")] or list(messages)
    ids: list[int] = []
    for message in own:
        ids += [BOUNDARY] if ids else []
        ids += _encode(message.content, tokenizer, add_special_tokens=False)
    return tuple(ids)


def _outside_frame(ids: tuple[int, ...], tokenizer: PreTrainedTokenizerBase) -> tuple[int, ...]:
    """Ids without what they share with an empty chat at either end: the chat template's own tokens."""
    if tokenizer.chat_template is None:
        return ids
    probe = Prompt(id="probe", set="probe", messages=(Message(role="user", content=""),))
    frame = _encode(_apply_template(probe, probe.messages or (), tokenizer), tokenizer, add_special_tokens=False)
    head = _num_equal(ids, frame)
    tail = _num_equal(ids[head:][::-1], frame[::-1])
    return ids[head : len(ids) - tail] or ids


def _num_equal(one: Sequence[int], other: Sequence[int]) -> int:
    count = 0
    while count < min(len(one), len(other)) and one[count] == other[count]:
        count += 1
    return count


def _encode(text: str, tokenizer: PreTrainedTokenizerBase, *, add_special_tokens: bool) -> tuple[int, ...]:
    return tuple(int(token) for token in tokenizer(text, add_special_tokens=add_special_tokens)["input_ids"])


def _require_known_ids(prompt: Prompt, vocab_size: int) -> None:
    for position, token in enumerate(prompt.ids or ()):
        if not 0 <= token < vocab_size:
            raise UsageError(
                f"prompt {prompt.id!r}: id {token} at position {position} is outside the vocabulary of {vocab_size}",
                why="engines differ in what they do with such an id, and none of it is the model",
                fix="check that prompt_ids were made with this model's tokenizer",
                code="LG0422",
            )


def _require_no_tools(prompt: Prompt, because: str) -> None:
    if prompt.tools:
        raise UsageError(
            f"prompt {prompt.id!r} has tools, but {because}",
            why="tools that never reach the model would be reported as covered",
            fix="remove the tools, or use messages with a model whose chat template takes tools",
            code="LG0424",
        )


def _no_tokenizer(
    model_path: Path, problem: str, *, fix: str = "check that the folder holds the model's tokenizer files"
) -> UsageError:
    return UsageError(
        f"no tokenizer could be loaded from {model_path}: {problem}",
        why="prompts become token ids here, once, for all arms",
        fix=fix,
        code="LG0420",
    )
