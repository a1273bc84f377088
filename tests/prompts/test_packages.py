"""Real prompt sets, read from packages that these tests lay out themselves."""

from __future__ import annotations

import gzip
import hashlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from lossguard.errors import UsageError
from lossguard.prompts.packages import SOURCES, read_package

RECORDS: dict[str, list[dict[str, Any]]] = {
    "mtbench": [{"question_id": 1, "turns": ["first turn", "second turn"]}, {"turns": ["another"]}],
    "human-eval": [{"task_id": "a/0", "prompt": "def f(x):\n"}],
    "gsm8k": [{"id": "x", "prompt": "How many?", "expected": "3"}],
    "logiqa": [
        {
            "input": [
                {"role": "system", "content": "Instructions: choose."},
                {"role": "system", "content": "Passage: it rains."},
                {"role": "user", "content": "Option 1: wet"},
            ]
        }
    ],
    "writingbench": [
        {"lang": "en", "query": "Write an essay."},
        {"lang": "zh", "query": "x"},
        {"lang": "en", "query": "y" * 20_000},
        {"query": "Write a letter, s\u2019il vous pla\u00eet."},  # as the package has them: without a language
        {"query": "\u5199\u4e00\u5c01\u4fe1 (a letter)"},
    ],
}
EXPECTED: dict[str, list[list[tuple[str, str]]]] = {
    "mtbench": [[("user", "first turn")], [("user", "another")]],
    "human-eval": [[("user", "Complete this Python function:\n\ndef f(x):\n")]],
    "gsm8k": [[("user", "How many?")]],
    "logiqa": [[("system", "Instructions: choose."), ("user", "Passage: it rains.\nOption 1: wet")]],
    "writingbench": [[("user", "Write an essay.")], [("user", "Write a letter, s\u2019il vous pla\u00eet.")]],
}
Install = Callable[[str, bytes | None], Path]


@pytest.fixture
def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Install:
    """Lay out the package of a set: its metadata, and its data file unless that is None."""

    def lay_out(name: str, data: bytes | None) -> Path:
        source = SOURCES[name]
        info = tmp_path / f"{source.distribution.replace('-', '_')}-9.1.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {source.distribution}\nVersion: 9.1\n")
        if data is not None:
            path = tmp_path / source.file
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    return lay_out


def file_of(name: str) -> bytes:
    data = "".join(json.dumps(record) + "\n" for record in RECORDS[name]).encode()
    return gzip.compress(data) if SOURCES[name].file.endswith(".gz") else data


@pytest.mark.parametrize("name", sorted(RECORDS))
def test_each_set_is_read(install: Install, name: str) -> None:
    data = file_of(name)
    install(name, data)
    prompts, notes = read_package(name, seed=1)
    assert [[(turn.role, turn.content) for turn in prompt.messages or ()] for prompt in prompts] == EXPECTED[name]
    assert prompts[0].id == f"{name}-000"
    assert {prompt.set for prompt in prompts} == {SOURCES[name].kind}
    assert notes == [
        f"{name}: {len(EXPECTED[name])} of {len(RECORDS[name])} records of {SOURCES[name].distribution} 9.1 "
        f"({SOURCES[name].file}), sha256 {hashlib.sha256(data).hexdigest()[:16]}"
    ]


def test_the_five_kinds_are_covered() -> None:
    assert {source.kind for source in SOURCES.values()} == {"chat", "code", "math", "reasoning", "long"}


@pytest.mark.parametrize("name", sorted(SOURCES))
def test_a_missing_package_is_named_with_the_extra(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "path", [])
    with pytest.raises(UsageError, match=f"needs the package {SOURCES[name].distribution}: it is not") as caught:
        read_package(name, seed=1)
    assert caught.value.code == "LG0417"
    assert "lossguard[prompts]" in caught.value.fix
    assert SOURCES[name].requirement in caught.value.fix


@pytest.mark.parametrize(
    ("data", "problem"),
    [
        (None, "cannot be read"),
        (b"", "is empty"),
        (b"{", "cannot be read"),
        (b'{"question": 1}', "record 0"),
        (b'{"turns": []}', "record 0"),
        (b'{"turns": [3]}', "expected text, found int"),
    ],
)
def test_data_of_another_shape_is_an_error(install: Install, data: bytes | None, problem: str) -> None:
    install("mtbench", data)
    with pytest.raises(UsageError, match=problem) as caught:
        read_package("mtbench", seed=1)
    assert caught.value.code == "LG0426"


@pytest.fixture
def no_reasoning_gym_left() -> Iterator[None]:
    sys.modules.pop("reasoning_gym", None)
    yield
    sys.modules.pop("reasoning_gym", None)


@pytest.mark.usefixtures("no_reasoning_gym_left")
def test_reasoning_gym_generates_by_seed(install: Install) -> None:
    folder = install("reasoning-gym", None)
    (folder / "reasoning_gym.py").write_text(
        "def create_dataset(name, size, seed):\n"
        "    return [{'question': f'{name} {seed} {index}'} for index in range(size)]\n"
    )
    prompts, notes = read_package("reasoning-gym", seed=5)
    assert len(prompts) == len({prompt.messages for prompt in prompts}) == 400
    assert prompts[1].messages is not None
    assert prompts[1].messages[0].content == "family_relationships 5 1"
    assert "400 of 400 records of reasoning-gym 9.1 (seed 5)" in notes[0]


@pytest.mark.usefixtures("no_reasoning_gym_left")
def test_a_reasoning_gym_that_cannot_be_imported_is_reported(install: Install) -> None:
    folder = install("reasoning-gym", None)
    (folder / "reasoning_gym.py").write_text("import a_module_that_is_not_there\n")
    with pytest.raises(UsageError, match="cannot be imported: No module named 'a_module_that_is_not_there'"):
        read_package("reasoning-gym", seed=5)


@pytest.mark.usefixtures("no_reasoning_gym_left")
def test_a_reasoning_gym_without_the_tasks_is_reported(install: Install) -> None:
    folder = install("reasoning-gym", None)
    (folder / "reasoning_gym.py").write_text("def create_dataset(name, **_): raise ValueError('no ' + name)\n")
    with pytest.raises(UsageError, match="task 'family_relationships': no family_relationships"):
        read_package("reasoning-gym", seed=5)
