"""Items of simple tasks from reasoning-gym, each behind worked examples of its own.

Every item gets other examples, so that no two prompts share a text and each stays one cluster of the statistics.
The texts are made by the package at run time; a file of items serves machines that lack it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any


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


def _sequence(text: str) -> str:
    return text.removesuffix("?").strip()


_SMALL = {"min_digits": 1, "max_digits": 1}
_SUMS = {"min_terms": 2, "max_terms": 2, "min_digits": 2, "max_digits": 2}
TASKS = (
    Task(name="sums-6", dataset="chain_sum", shots=6, shorten=_problem, options=_SUMS, asked={"min_digits": 1}),
    Task(name="small-sums-6", dataset="chain_sum", shots=6, shorten=_problem, options=_SUMS, asked=_SMALL),
    Task(name="small-sums-12", dataset="chain_sum", shots=12, shorten=_problem, options=_SUMS, asked=_SMALL),
    Task(name="sequences-4", dataset="number_sequence", shots=4, shorten=_sequence, options={}),
)


def make_items(task: Task, number: int, seed: int) -> list[Item]:
    """``number`` items of one task. Raises ModuleNotFoundError without the package."""
    import reasoning_gym

    examples = reasoning_gym.create_dataset(task.dataset, seed=seed, size=number * task.shots, **task.options)
    settings = {**task.options, **task.asked}
    asked = reasoning_gym.create_dataset(task.dataset, seed=seed + 1_000_003, size=number, **settings)
    items = []
    for index in range(number):
        rows = [examples[index * task.shots + shot] for shot in range(task.shots)]
        lines = [f"{task.shorten(row['question'])} {row['answer']}" for row in rows]
        lines.append(task.shorten(asked[index]["question"]))
        items.append(Item(task=task.name, prompt="\n".join(lines), answer=str(asked[index]["answer"])))
    return items


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
