"""The accuracy table's arithmetic and its items; the table itself is run by hand (docs/accuracy.md)."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
from scipy.stats import norm

from benchmarks.accuracy_table import CANDIDATES, Row, paired_interval, render, systems_for, wilson
from benchmarks.accuracy_tasks import TASKS, Item, distinct_prompts, read_items
from lossguard.engines.base import EngineSpec
from lossguard.engines.transformers_options import parse_options
from lossguard.prompts.clusters import cluster_labels


@pytest.mark.parametrize(("right", "number"), [(0, 20), (7, 20), (400, 800), (800, 800)])
def test_wilson_bounds_are_where_the_score_test_is_at_five_percent(right: int, number: int) -> None:
    share, z = right / number, norm.ppf(0.975)
    for bound in wilson(right, number):
        distance = abs(share - bound) * number
        assert distance == pytest.approx(z * (max(bound * (1 - bound), 0.0) * number) ** 0.5, rel=1e-4, abs=1e-5)


def test_paired_interval_uses_the_items_that_differ() -> None:
    ours, theirs = [True, True, False, False] * 50, [True, False, True, False] * 50
    mean, low, high = paired_interval(ours, theirs)
    assert mean == 0
    assert high == pytest.approx(-low)
    assert high == pytest.approx(1.96 * (0.5 * 200 / 199 / 200) ** 0.5, rel=1e-3)
    assert paired_interval(ours, ours) == (0, 0, 0)


def test_an_answer_is_the_whole_first_line() -> None:
    item = Item(task="sums", prompt="2 + 2 =", answer="4")
    assert item.is_right(" 4\n5 + 5 = 10")
    assert item.is_right("4")
    assert not item.is_right("44\n")
    assert not item.is_right(" 5\n4")
    assert not item.is_right("")


def test_problems_are_shortened() -> None:
    text = "State the final answer to the following arithmetic problem: 4 - 1 ="
    assert {task.shorten(text) for task in TASKS} == {"4 - 1 ="}


def test_no_two_prompts_share_a_passage() -> None:
    rng = random.Random(17)
    sums = [(rng.randint(10, 99), rng.randint(10, 99)) for _ in range(3_000)]
    drawn = [f"{one} + {other} = {one + other}" for one, other in sums]
    prompts = distinct_prompts(["1 + 2 ="] * 60, iter(drawn), 6)
    clusters = cluster_labels({str(at): _pieces(prompt) for at, prompt in enumerate(prompts)}, ngram_length=9)
    assert len(set(clusters.values())) == 60
    first = {str(at): _pieces("\n".join(drawn[at * 6 : at * 6 + 6])) for at in range(60)}
    assert len(set(cluster_labels(first, ngram_length=9).values())) < 60, "without new draws some do share one"
    assert all(prompt.endswith("\n1 + 2 =") and prompt.count("\n") == 6 for prompt in prompts)


def test_examples_that_run_out_are_an_error() -> None:
    with pytest.raises(SystemExit, match="too few different examples"):
        distinct_prompts(["1 + 2 ="] * 2, iter(["10 + 10 = 20"] * 9), 2)


def _pieces(text: str) -> list[str]:
    return [sign for sign in text if not sign.isspace()]


def test_items_are_read_by_task(tmp_path: Path) -> None:
    path = tmp_path / "items.jsonl"
    path.write_text('{"task": "a", "prompt": "1 + 1 =", "answer": "2"}\n{"task": "b", "prompt": "x", "answer": "y"}\n')
    assert read_items(path) == {
        "a": [Item(task="a", prompt="1 + 1 =", answer="2")],
        "b": [Item(task="b", prompt="x", answer="y")],
    }


def test_the_systems_are_options_that_the_engine_takes() -> None:
    systems = systems_for("cpu", 2)
    assert set(systems) == {"stock", *CANDIDATES}
    for system in systems.values():
        parse_options(EngineSpec(name=system.name, model_path="x", options=system.options))


def test_the_table_shows_accuracy_beside_the_verdict() -> None:
    row = Row(
        system="wrong-token",
        kind="faulty",
        num_items=800,
        accuracy=0.5,
        accuracy_low=0.465,
        accuracy_high=0.535,
        difference_points=-0.25,
        difference_low_points=-0.6,
        difference_high_points=0.1,
        mismatch_fraction=0.004,
        unexplained_events=7,
        audited_positions=9,
        verdict="FAIL",
        failed=("event",),
    )
    assert "50.0% (46.5% to 53.5%)" in render([row])
    assert "-0.2 pt (-0.6 to +0.1)" in render([row])
    assert render([row]).endswith("FAIL by event")
