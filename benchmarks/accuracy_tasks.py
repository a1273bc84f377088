"""Items of simple tasks from reasoning-gym, each behind worked examples of its own.

Prompts that share 13 tokens in a row are one cluster of the statistics, and a sum with its answer is nearly that long.
So an example is drawn again until the prompt shares no nine pieces (digits, signs, words) in a row with an earlier one.
The texts are made by the package at run time; a file of items serves machines that lack it.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

PASSAGE_LENGTH = 9
DRAWS_PER_EXAMPLE = 40
_PIECE = re.compile(r"[^\W\d_]+|\S")


@dataclass(frozen=True, slots=True, kw_only=True)
class Item:
    """One prompt with its right answer. An answer counts if it is the whole first line of the reply."""

    task: str
    prompt: str
    answer: str

    def is_right(self, reply: str) -> bool:
        """Whether the first line of the reply is the answer, spaces aside."""
        return reply.strip().partition("\n")[0].strip() == self.answer


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """A dataset of the package in a short form; ``asked`` changes the item that is asked, not its examples."""

    name: str
    dataset: str
    shots: int
    shorten: Callable[[str], str]
    options: dict[str, Any]
    asked: dict[str, Any] = dataclasses.field(default_factory=dict)


def _problem(text: str) -> str:
    return text.partition(": ")[2].partition(". ")[0].strip().removesuffix("=").strip() + " ="


_SMALL = {"min_digits": 1, "max_digits": 1}
_SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
TASKS = (
    Task(name="sums-6", dataset="chain_sum", shots=6, shorten=_problem, options=_SUMS, asked={"min_digits": 1}),
    Task(name="small-sums-6", dataset="chain_sum", shots=6, shorten=_problem, options=_SUMS, asked=_SMALL),
    Task(name="small-sums-12", dataset="chain_sum", shots=12, shorten=_problem, options=_SUMS, asked=_SMALL),
)


def make_items(task: Task, number: int, seed: int) -> list[Item]:
    """``number`` items of one task. Raises ModuleNotFoundError without the package."""
    import reasoning_gym

    most = number * task.shots * DRAWS_PER_EXAMPLE
    examples = reasoning_gym.create_dataset(task.dataset, seed=seed, size=most, **task.options)
    settings = {**task.options, **task.asked}
    asked = reasoning_gym.create_dataset(task.dataset, seed=seed + 1_000_003, size=number, **settings)
    drawn = (f"{task.shorten(examples[at]['question'])} {examples[at]['answer']}" for at in range(most))
    questions = [task.shorten(asked[index]["question"]) for index in range(number)]
    prompts = distinct_prompts(questions, drawn, task.shots)
    return [
        Item(task=task.name, prompt=prompt, answer=str(asked[index]["answer"])) for index, prompt in enumerate(prompts)
    ]


def distinct_prompts(questions: Sequence[str], drawn: Iterator[str], shots: int) -> list[str]:
    """Each question behind ``shots`` of the drawn examples. Raises SystemExit if they do not last."""
    seen: set[tuple[str, ...]] = set()
    prompts = []
    for question in questions:
        lines: list[str] = []
        while len(lines) < shots:
            example = next(drawn, None)
            if example is None:
                raise SystemExit(f"too few different examples for {len(questions)} prompts of {shots} each")
            ending = [question] if len(lines) == shots - 1 else []
            if seen.isdisjoint(_passages("\n".join([*lines, example, *ending]))):
                lines.append(example)
        prompts.append("\n".join([*lines, question]))
        seen.update(_passages(prompts[-1]))
    return prompts


def _passages(text: str) -> set[tuple[str, ...]]:
    pieces = _PIECE.findall(text)
    return {tuple(pieces[at : at + PASSAGE_LENGTH]) for at in range(len(pieces) - PASSAGE_LENGTH + 1)}


def write_items(path: Path, number: int, seed: int) -> None:
    """Items of every task, one a line."""
    rows = [dataclasses.asdict(item) for task in TASKS for item in make_items(task, number, seed)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def read_items(path: Path) -> dict[str, Sequence[Item]]:
    """Items by task, as ``write_items`` wrote them."""
    items: dict[str, list[Item]] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        item = Item(**json.loads(line))
        items.setdefault(item.task, []).append(item)
    return dict(items)
