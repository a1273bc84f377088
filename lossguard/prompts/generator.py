"""This project's own prompts, written by a seeded generator: five kinds, any number, none sharing a passage.

The same seed, sizes and ``max_prompt_tokens`` give the same prompts everywhere. A larger test split extends a smaller
one and leaves calibration and sealed prompts as they are.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from types import ModuleType

from lossguard.errors import UsageError, near_miss
from lossguard.prompts.base import KINDS, Message, Prompt, PromptSet, interleave
from lossguard.prompts.clusters import SplitSizes, split_by_cluster
from lossguard.prompts.distinct_text import DistinctWriter, Draft
from lossguard.prompts.kinds import chat, code, long, math, reasoning

DEMO_MAX_PROMPT_TOKENS = 48
LONGEST_DOCUMENT_TOKENS = 1_150  # estimated; the templates and a tokenizer's finer cuts come on top
_SHORTEST_DOCUMENT_TOKENS = 220
_ROOM_FOR_TASK = 70
_SHARE_OF_BRIEF = 0.3
_SHORTEST_CAP = 24
_FULL_FROM = 240  # with a smaller cap only the brief templates are used

_MODULES: Mapping[str, ModuleType] = {
    "chat": chat,
    "code": code,
    "math": math,
    "reasoning": reasoning,
    "long": long,
}


def default_prompts(
    seed: int, sizes: SplitSizes | None = None, *, max_prompt_tokens: int | None = None, kinds: Sequence[str] = KINDS
) -> PromptSet:
    """Prompts of the five kinds in equal shares, about 20 to 1,500 tokens long, split for a run.

    ``max_prompt_tokens`` limits the length of the prompt's own text, in estimated tokens (a chat template comes on
    top). Raises UsageError: LG0418 for an unknown kind, LG0427 for an impossible limit, LG0419 if the
    generator runs dry.
    """
    wanted = sizes or SplitSizes()
    prompts = generate(seed, wanted.total, max_prompt_tokens=max_prompt_tokens, kinds=kinds)
    singles = {prompt.id: prompt.id for prompt in prompts}  # no two share a passage: each is its own cluster
    splits, reasons = split_by_cluster(prompts, singles, wanted, seed=None)
    limit = "no length limit" if max_prompt_tokens is None else f"at most about {max_prompt_tokens} tokens each"
    note = f"{len(prompts)} generated prompts ({', '.join(kinds)}), seed {seed}, {limit}"
    return PromptSet(name="default", prompts=tuple(prompts), splits=splits, reasons=(note, *reasons))


def demo_prompts(
    seed: int,
    num_calibration: int = 80,
    num_test: int = 240,
    *,
    num_sealed: int = 0,
    kinds: Sequence[str] = KINDS,
    system: str | None = None,
) -> PromptSet:
    """Short prompts of all five kinds, for a demonstration on a CPU.

    ``system`` is a system message for every prompt: some chat templates insert a longer one of their own where none
    is given (``render.shortest_system_message`` decides that).
    """
    sizes = SplitSizes(calibration=num_calibration, test=num_test, sealed=num_sealed)
    made = default_prompts(seed, sizes, max_prompt_tokens=DEMO_MAX_PROMPT_TOKENS, kinds=kinds)
    prompts = made.prompts if system is None else tuple(_with_system(prompt, system) for prompt in made.prompts)
    return PromptSet(name="demo", prompts=prompts, splits=made.splits, reasons=made.reasons)


def generate(
    seed: int, count: int, *, max_prompt_tokens: int | None = None, kinds: Sequence[str] = KINDS
) -> list[Prompt]:
    """``count`` prompts, the kinds taking turns; asking for more only adds prompts at the end."""
    _require_possible(max_prompt_tokens, kinds)
    writer = DistinctWriter()
    prompts = []
    for place in range(count):
        kind, index = kinds[place % len(kinds)], place // len(kinds)
        draft = writer.start(random.Random(f"{seed}/{kind}/{index}"))
        _write(draft, kind, max_prompt_tokens)
        message = Message(role="user", content=draft.finish())
        prompts.append(Prompt(id=f"{kind}-{index:03d}", set=kind, messages=(message,)))
    return interleave([prompts[first :: len(kinds)] for first in range(len(kinds))])


def _write(draft: Draft, kind: str, most: int | None) -> None:
    module = _MODULES[kind]
    if most is not None and most < _FULL_FROM:
        draft.write(module.BRIEF, module.WORDS, most=most)
    elif kind == "long":
        _write_document(draft, min(most or LONGEST_DOCUMENT_TOKENS, LONGEST_DOCUMENT_TOKENS))
    else:
        is_brief = draft.rng.random() < _SHARE_OF_BRIEF
        draft.write(module.BRIEF if is_brief else module.FULL, module.WORDS, most=most)


def _write_document(draft: Draft, most: int) -> None:
    """A document of seeded length under ``most`` tokens, with its task at the end."""
    genre = draft.rng.choice(long.GENRES)
    room = most - _ROOM_FOR_TASK
    length = draft.rng.randint(min(_SHORTEST_DOCUMENT_TOKENS, room), room)
    draft.write(genre.opening, long.WORDS, ending=genre.separator.lstrip())
    while draft.num_tokens < length:
        # The separator is drawn with its sentence: one whose end leaves no new way on is then never chosen.
        draft.write(genre.sentences, long.WORDS, ending=genre.separator)
    draft.drop_ending(genre.separator)
    draft.write(long.CLOSING, long.WORDS, most=most)


def _with_system(prompt: Prompt, system: str) -> Prompt:
    messages = (Message(role="system", content=system), *(prompt.messages or ()))
    return Prompt(id=prompt.id, set=prompt.set, messages=messages)


def _require_possible(max_prompt_tokens: int | None, kinds: Sequence[str]) -> None:
    unknown = [kind for kind in kinds if kind not in _MODULES]
    if unknown or not kinds:
        raise UsageError(
            f"unknown kind of prompts: {unknown[0]!r}" if unknown else "no kind of prompts was named",
            why="the generator has templates for five kinds only",
            fix=near_miss(unknown[0] if unknown else "", KINDS),
            code="LG0418",
        )
    if max_prompt_tokens is not None and max_prompt_tokens < _SHORTEST_CAP:
        raise UsageError(
            f"max_prompt_tokens is {max_prompt_tokens}",
            why=f"prompts need about {_SHORTEST_CAP} tokens to differ from one another",
            fix=f"set max_prompt_tokens to {_SHORTEST_CAP} or more",
            code="LG0427",
        )
