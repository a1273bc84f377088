"""Clusters by shared n-grams, and splits that no cluster spans."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, reject
from hypothesis import strategies as st

from lossguard.errors import UsageError
from lossguard.prompts.base import Prompt, Split
from lossguard.prompts.clusters import BOUNDARY, SplitSizes, cluster_labels, split_by_cluster

Contents = Mapping[str, Sequence[int]]


def named(contents: Sequence[Sequence[int]]) -> dict[str, Sequence[int]]:
    return {f"p{index}": content for index, content in enumerate(contents)}


def grams(content: Sequence[int], length: int) -> set[tuple[int, ...]]:
    windows = {tuple(content[i : i + length]) for i in range(len(content) - length + 1)}
    return {tuple(content)} if len(content) < length else {window for window in windows if BOUNDARY not in window}


def components(contents: Contents, length: int) -> set[frozenset[str]]:
    """By hand: grow groups until nothing joins any more."""
    groups = [({name}, grams(content, length)) for name, content in contents.items()]
    joined = True
    while joined:
        joined = False
        for i in range(len(groups)):
            for j in range(i + 1, len(groups)):
                if groups[i][1] & groups[j][1]:
                    groups[i] = (groups[i][0] | groups[j][0], groups[i][1] | groups[j][1])
                    del groups[j]
                    joined = True
                    break
            if joined:
                break
    return {frozenset(names) for names, _ in groups}


@given(st.lists(st.lists(st.integers(BOUNDARY, 2), max_size=9), min_size=1, max_size=8))
def test_labels_are_the_connected_components(contents: list[list[int]]) -> None:
    given_contents = named(contents)
    labels = cluster_labels(given_contents, ngram_length=3)
    found: dict[str, set[str]] = {}
    for name, label in labels.items():
        found.setdefault(label, set()).add(name)
    assert {frozenset(names) for names in found.values()} == components(given_contents, 3)
    assert all(label == min(names, key=lambda name: int(name[1:])) for label, names in found.items())


def test_the_default_is_thirteen_tokens() -> None:
    shared = list(range(13))
    assert set(cluster_labels({"a": [90, *shared], "b": [*shared, 91]}).values()) == {"a"}
    assert len(set(cluster_labels({"a": [90, *shared[:12]], "b": [*shared[:12], 91]}).values())) == 2


def test_no_ngram_crosses_a_message_boundary() -> None:
    content = [1, 2, BOUNDARY, 3, 4]
    assert len(set(cluster_labels({"a": [9, *content], "b": [*content, 8]}, ngram_length=3).values())) == 2


def make_prompts(num_by_set: Mapping[str, int]) -> list[Prompt]:
    return [
        Prompt(id=f"{name}-{index:03d}", set=name, text=f"text {name} {index}")
        for name, count in num_by_set.items()
        for index in range(count)
    ]


def clusters_of(prompts: Sequence[Prompt], size: int) -> dict[str, str]:
    return {prompt.id: prompts[index - index % size].id for index, prompt in enumerate(prompts)}


@given(
    st.integers(2, 60),
    st.integers(1, 5),
    st.integers(1, 30),
    st.integers(1, 30),
    st.integers(0, 30),
    st.integers(0, 3),
)
def test_no_cluster_is_in_two_splits(
    num_prompts: int, size: int, calibration: int, test: int, sealed: int, seed: int
) -> None:
    prompts = make_prompts({"a": num_prompts, "b": num_prompts // 2})
    clusters = clusters_of(prompts, size)
    sizes = SplitSizes(calibration=calibration, test=test, sealed=sealed)
    try:
        splits, _ = split_by_cluster(prompts, clusters, sizes, seed=seed)
    except UsageError:
        reject()  # too few clusters for two splits, which has its own test
    places: dict[str, set[Split]] = {}
    for split, names in splits.items():
        assert len(names) <= sizes.of(split)
        assert len(set(names)) == len(names)
        for name in names:
            places.setdefault(clusters[name], set()).add(split)
    assert all(len(found) == 1 for found in places.values())
    assert (splits, _) == split_by_cluster(prompts, clusters, sizes, seed=seed)


def test_the_seed_decides() -> None:
    prompts = make_prompts({"a": 60})
    sizes = SplitSizes(calibration=10, test=30, sealed=10)
    one, other = (split_by_cluster(prompts, clusters_of(prompts, 1), sizes, seed=seed)[0] for seed in (1, 2))
    assert set(one[Split.TEST]) != set(other[Split.TEST])


def test_sets_have_equal_shares_until_one_runs_out() -> None:
    prompts = make_prompts({"a": 100, "b": 100, "c": 12})
    sizes = SplitSizes(calibration=30, test=60, sealed=0)
    splits, _ = split_by_cluster(prompts, clusters_of(prompts, 1), sizes, seed=5)
    shares = {split: Counter(name.split("-")[0] for name in names) for split, names in splits.items()}
    assert shares[Split.CALIBRATION] == {"a": 10, "b": 10, "c": 10}
    assert shares[Split.TEST] == {"a": 29, "b": 29, "c": 2}


def test_a_larger_test_split_changes_no_other_split() -> None:
    prompts = make_prompts({"a": 60, "b": 60})
    clusters = clusters_of(prompts, 1)
    small, _ = split_by_cluster(prompts, clusters, SplitSizes(calibration=10, test=20, sealed=10), seed=None)
    large, _ = split_by_cluster(prompts, clusters, SplitSizes(calibration=10, test=70, sealed=10), seed=None)
    assert small[Split.CALIBRATION] == large[Split.CALIBRATION]
    assert small[Split.SEALED] == large[Split.SEALED]
    assert small[Split.TEST] == large[Split.TEST][:20]


@pytest.mark.parametrize("seed", range(5))
def test_a_large_cluster_stays_out_of_calibration(seed: int) -> None:
    """Of 30 calibration prompts it would leave 11 clusters to set thresholds by."""
    prompts = make_prompts({"a": 60, "b": 20})
    clusters = {prompt.id: "b-000" if prompt.set == "b" else prompt.id for prompt in prompts}
    splits, _ = split_by_cluster(prompts, clusters, SplitSizes(calibration=30, test=40, sealed=10), seed=seed)
    assert {name for name in splits[Split.TEST] if name.startswith("b")} == {f"b-{index:03d}" for index in range(20)}
    assert {split: len(names) for split, names in splits.items()} == {
        Split.CALIBRATION: 30,
        Split.TEST: 40,
        Split.SEALED: 10,
    }


def test_without_calibration_large_clusters_keep_their_turn() -> None:
    prompts = make_prompts({"a": 10, "b": 10})
    clusters = {prompt.id: "b-000" if prompt.set == "b" else prompt.id for prompt in prompts}
    splits, _ = split_by_cluster(prompts, clusters, SplitSizes(calibration=0, test=20, sealed=0), seed=None)
    assert splits[Split.TEST][1:11] == tuple(f"b-{index:03d}" for index in range(10))


def test_too_few_prompts_shrink_the_splits_and_say_so() -> None:
    prompts = make_prompts({"a": 40})
    sizes = SplitSizes(calibration=80, test=240, sealed=80)
    splits, reasons = split_by_cluster(prompts, clusters_of(prompts, 1), sizes, seed=0)
    assert {split: len(names) for split, names in splits.items()} == {
        Split.CALIBRATION: 10,
        Split.TEST: 30,
        Split.SEALED: 0,
    }
    assert reasons == ("only 40 prompts for 400: calibration 10 of 80, test 30 of 240, sealed 0 of 80",)


def test_prompts_that_do_not_fit_are_counted() -> None:
    prompts = make_prompts({"a": 50})
    sizes = SplitSizes(calibration=5, test=10, sealed=5)
    _, reasons = split_by_cluster(prompts, clusters_of(prompts, 1), sizes, seed=0)
    assert reasons == ("30 of 50 prompts are not used: the splits are full",)


def test_one_cluster_cannot_be_split() -> None:
    prompts = make_prompts({"a": 50})
    sizes = SplitSizes(calibration=5, test=10, sealed=5)
    with pytest.raises(UsageError, match="50 prompts in 1 clusters") as caught:
        split_by_cluster(prompts, clusters_of(prompts, 50), sizes, seed=0)
    assert caught.value.code == "LG0416"
