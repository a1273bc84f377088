"""Pages whose commands and code run here as they stand, in order, and print what the pages show."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lossguard.gate_result import GateResult
from lossguard.plan import Plan
from tests.documents.blocks import PAGES, ROOT, Block, all_blocks, blocks_of
from tests.documents.worlds import World, checkout, require_shown, toy_project

STORIES: dict[str, Callable[[Path], World]] = {
    "docs/replay.md": checkout,
    "docs/tutorial.md": toy_project,
    "docs/writing-a-mechanism.md": toy_project,
    "docs/writing-an-engine.md": toy_project,
}
FAST = frozenset({"docs/replay.md"})  # the others judge a toy model several times; tests/examples does so once
NOT_RUN = frozenset({"README.md"})  # it names the reader's systems; the tutorial runs the same commands
PYTHON_PAGES = sorted({block.page for block in all_blocks() if block.kind == "python"})


@pytest.mark.parametrize(
    "page", [pytest.param(page, marks=() if page in FAST else pytest.mark.slow) for page in STORIES]
)
def test_a_page_runs_and_prints_what_it_shows(page: str, tmp_path: Path) -> None:
    world = STORIES[page](tmp_path)
    printed = ""
    for block in blocks_of(ROOT / page):
        if block.kind in ("python", "toml") and block.file_name not in (None, "pyproject.toml"):
            world.take(block)
        elif block.kind == "console" and block.is_run:
            printed = world.run(block)
        elif block.kind == "text" and printed:
            require_shown(block, printed)


def test_every_command_runs_or_is_marked() -> None:
    pages = {str(path.relative_to(ROOT)) for path in PAGES} - set(STORIES) - NOT_RUN
    unmarked = [
        block.name for page in pages for block in blocks_of(ROOT / page) if block.kind == "console" and block.is_run
    ]
    assert unmarked == []


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """What Python blocks find beside them: a toy project, this repository's fixtures, a report."""
    folder = toy_project(tmp_path_factory.mktemp("pages")).folder
    (folder / "fixtures").symlink_to(ROOT / "fixtures")
    (folder / "report.json").write_text('{"schema_version": "1.0", "claims": []}', encoding="utf-8")
    yield folder
    for name in ("toylm", "toylm_scorer", "my_library"):
        sys.modules.pop(name, None)


@pytest.mark.parametrize("page", PYTHON_PAGES)
def test_python_runs(page: str, project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page in one namespace; verdicts are not waited for (the stories have some)."""
    monkeypatch.chdir(project)
    monkeypatch.syspath_prepend(str(project))
    blocks = [block for block in blocks_of(ROOT / page) if block.kind == "python"]
    if any("run_gate" in block.text for block in blocks):
        monkeypatch.setattr("lossguard.gate.run_gate", _judge_nothing)
    namespace: dict[str, object] = {"__name__": "page"}
    for block in blocks:
        exec(compile(block.text, block.name, "exec"), namespace)
    assert len(namespace) > 2


def _judge_nothing(plan: Plan) -> GateResult:
    plan.require_candidates()
    assert plan.stock
    return GateResult(claims=(), report={}, run_folder=Path())


def test_what_is_shown_must_be_printed() -> None:
    shown = Block(page="page.md", line=1, kind="text", text="PASS  a  ... tokens\n...\nend\n")
    require_shown(shown, "x\nPASS  a  12 tokens\ny\nend\n")
    for printed in ("PASS  a  12 tokens\n", "end\nPASS  a  1 tokens\n", ""):
        with pytest.raises(AssertionError, match="not printed"):
            require_shown(shown, printed)


def test_a_command_that_ends_otherwise_is_noticed(tmp_path: Path) -> None:
    world = World(folder=tmp_path, programs=tmp_path)
    for text, expected in itertools.product(("exit 3\n", "true\n"), ("0", "1")):
        block = Block(page="page.md", line=1, kind="console", text=text, notes={"exit": expected})
        if (text, expected) == ("true\n", "0"):
            assert world.run(block) == ""
            continue
        with pytest.raises(AssertionError, match="1: exit"):
            world.run(block)
