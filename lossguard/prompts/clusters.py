"""Clusters: prompts that share 13 tokens in a row are one cluster, the unit of the statistics; and cluster splits."""

from __future__ import annotations

import random
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from lossguard.errors import UsageError
from lossguard.prompts.base import Prompt, Split

NGRAM_LENGTH = 13
BOUNDARY = -1
"""Stands between messages in content ids: no n-gram crosses it."""

_LARGE_SHARE = 10
"""A cluster of more than one in so many calibration prompts is large: what stock does is seen once in all of them."""
_FILL_ORDER = (Split.CALIBRATION, Split.SEALED, Split.TEST)  # test last: it alone grows with the budget


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitSizes:
    """How many prompts each split should have."""

    calibration: int = 80
    test: int = 240
    sealed: int = 80

    def of(self, split: Split) -> int:
        """The size of one split."""
        return {Split.CALIBRATION: self.calibration, Split.TEST: self.test, Split.SEALED: self.sealed}[split]

    @property
    def total(self) -> int:
        """Prompts in all three splits."""
        return self.calibration + self.test + self.sealed


def cluster_labels(contents: Mapping[str, Sequence[Hashable]], *, ngram_length: int = NGRAM_LENGTH) -> dict[str, str]:
    """Cluster of each prompt: the id of its first member, in the order of ``contents``.

    Prompts sharing an n-gram are joined (union-find). A content shorter than the n-gram is joined to one that is
    equal to it as a whole. Time and memory grow with the number of tokens.
    """
    parent = {name: name for name in contents}
    order = {name: rank for rank, name in enumerate(contents)}
    first_owner: dict[tuple[Hashable, ...], str] = {}

    def root(name: str) -> str:
        while parent[name] != name:
            parent[name] = parent[parent[name]]
            name = parent[name]
        return name

    for name, content in contents.items():
        for gram in _ngrams(content, ngram_length):
            owner = first_owner.setdefault(gram, name)
            one, other = sorted((root(owner), root(name)), key=order.__getitem__)
            parent[other] = one
    return {name: root(name) for name in contents}


def _ngrams(content: Sequence[Hashable], length: int) -> Iterator[tuple[Hashable, ...]]:
    if len(content) < length:
        yield tuple(content)
        return
    start = 0
    for stop in [*(place for place, item in enumerate(content) if item == BOUNDARY), len(content)]:
        yield from (tuple(content[first : first + length]) for first in range(start, stop - length + 1))
        start = stop + 1


def split_by_cluster(
    prompts: Sequence[Prompt], clusters: Mapping[str, str], sizes: SplitSizes, *, seed: int | None
) -> tuple[dict[Split, tuple[str, ...]], tuple[str, ...]]:
    """Divide prompts so that no cluster is in two splits; the same seed and prompts give the same division.

    Sets take turns, so that every split has about equal shares of each until one runs out. Large clusters come last, so
    that they reach calibration only where nothing else is left for it. ``seed`` None keeps the given order within a
    set: then more prompts at the end, for a larger test split, leave the other splits as they
    are. If there are too few prompts, calibration and test shrink in proportion and the sealed split gets what is
    left. Returns the ids per split and the reasons for what was left out or made smaller. Raises UsageError (LG0416)
    if a split that was asked for stays empty, the sealed one aside.
    """
    wanted, reasons = _affordable(len(prompts), sizes)
    room = {split: wanted.of(split) for split in Split}
    placed: dict[Split, list[str]] = {split: [] for split in Split}
    left_out = 0
    most = max(1, wanted.calibration // _LARGE_SHARE)
    for members in sorted(_clusters_in_turn(prompts, clusters, seed), key=lambda members: len(members) > most):
        split = _split_for(len(members), room)
        taken = members[: room[split]]
        placed[split] += [prompt.id for prompt in taken]
        room[split] -= len(taken)
        left_out += len(members) - len(taken)
    for split in (Split.CALIBRATION, Split.TEST):
        if sizes.of(split) and not placed[split]:
            raise _cannot_split(split, len(prompts), len(set(clusters.values())))
    if left_out:
        reasons.append(f"{left_out} of {len(prompts)} prompts are not used: the splits are full")
    return {split: tuple(names) for split, names in placed.items()}, tuple(reasons)


def _affordable(available: int, sizes: SplitSizes) -> tuple[SplitSizes, list[str]]:
    judged = sizes.calibration + sizes.test
    if available >= sizes.total:
        return sizes, []
    if available >= judged:
        smaller = SplitSizes(calibration=sizes.calibration, test=sizes.test, sealed=available - judged)
    else:
        calibration = min(available, -(-available * sizes.calibration // judged))
        smaller = SplitSizes(calibration=calibration, test=available - calibration, sealed=0)
    note = (
        f"only {available} prompts for {sizes.total}: calibration {smaller.calibration} of {sizes.calibration}, "
        f"test {smaller.test} of {sizes.test}, sealed {smaller.sealed} of {sizes.sealed}"
    )
    return smaller, [note]


def _clusters_in_turn(prompts: Sequence[Prompt], clusters: Mapping[str, str], seed: int | None) -> list[list[Prompt]]:
    """Clusters in a seeded order in which the sets take turns; a cluster counts for the set of its first member."""
    members: dict[str, list[Prompt]] = defaultdict(list)
    for prompt in prompts:
        members[clusters[prompt.id]].append(prompt)
    by_set: dict[str, list[list[Prompt]]] = defaultdict(list)
    for group in members.values():
        by_set[group[0].set].append(group)
    turns: list[tuple[int, int, list[Prompt]]] = []
    for place, (name, groups) in enumerate(by_set.items()):
        if seed is not None:
            random.Random(f"{seed}/{name}").shuffle(groups)
        turns += [(rank, place, group) for rank, group in enumerate(groups)]
    return [group for _, _, group in sorted(turns, key=lambda turn: turn[:2])]


def _split_for(size: int, room: Mapping[Split, int]) -> Split:
    for split in _FILL_ORDER:
        if room[split] >= size:
            return split
    return max(_FILL_ORDER, key=lambda split: room[split])


def _cannot_split(split: Split, num_prompts: int, num_clusters: int) -> UsageError:
    return UsageError(
        f"{num_prompts} prompts in {num_clusters} clusters leave no prompt for the {split.value} split",
        why="calibration and test must not share text, and clusters (prompts sharing 13 tokens in a row) stay together",
        fix="give more prompts that do not share long passages, or add a built-in set such as 'default'",
        code="LG0416",
    )
