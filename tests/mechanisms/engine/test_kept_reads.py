"""Reads kept from step to step against pages gathered anew: the same bits, whatever happens to the pages between."""

from __future__ import annotations

import random
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from lossguard_mechanisms.engine import kept_reads
from lossguard_mechanisms.engine.pages import Gathering, PagedKeyValues, PageLayout
from lossguard_mechanisms.targets.config import ATTENTION, DELTA
from lossguard_mechanisms.targets.rows import rows_of
from lossguard_mechanisms.trees.tree import Path
from tests.mechanisms.drafters.small import small_target

PAGE_SIZE, NUM_PAGES, NUM_ROWS = 4, 40, 2
CONFIG = replace(small_target().config, layer_types=(ATTENTION, DELTA, ATTENTION))


class Pair:
    """Two memories that get the same steps; one of them gathers every time."""

    def __init__(self, seed: int) -> None:
        self._generator = torch.Generator().manual_seed(seed)
        self.keeping, self.plain = (
            PagedKeyValues(CONFIG, NUM_PAGES, PAGE_SIZE, dtype=torch.bfloat16) for _ in range(2)
        )
        self.num_kept = 0

    def step(self, pages: list[list[int]], pasts: list[int], *, num_rows: int, is_decode: bool) -> None:
        """Run ``num_rows`` rows of each sequence through all layers, and compare."""
        rows = rows_of(range(len(pages)), pasts, [num_rows] * len(pages))
        longest = max(map(len, pages))
        table = torch.tensor([[*owned, *[0] * (longest - len(owned))] for owned in pages])
        layouts = [
            side.layout(rows, table, is_decode=is_decode and side is self.keeping)
            for side in (self.keeping, self.plain)
        ]
        way = layouts[0].way
        assert isinstance(way, Gathering)
        self.num_kept += way.kept_writes is not None
        for layer in CONFIG.attention_layers:
            heads = (CONFIG.num_attention_heads, CONFIG.num_key_value_heads, CONFIG.num_key_value_heads)
            tensors = [self._normal(len(pages) * num_rows, count) for count in heads]
            kept, gathered = (
                side.attend(layer, layout, *tensors)
                for side, layout in zip((self.keeping, self.plain), layouts, strict=True)
            )
            assert torch.equal(kept, gathered)

    def move(self, pages: list[list[int]], pasts: list[int], nodes: list[list[int]]) -> None:
        """Bring rows together, as a tree's commit does."""
        rows = rows_of(range(len(pages)), pasts, [NUM_ROWS] * len(pages))
        moved = torch.tensor(nodes)
        path = Path(nodes=moved, num_nodes=torch.full(moved.shape[:1], moved.shape[1]), emitted=moved)
        for side in (self.keeping, self.plain):
            layout: PageLayout = side.layout(rows, torch.tensor(pages))
            side.move(layout, path)

    def _normal(self, num_rows: int, heads: int) -> Tensor:
        return torch.randn(num_rows, heads, CONFIG.head_dim, generator=self._generator).bfloat16()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("num_rows", [1, NUM_ROWS])
def test_sequences_that_come_and_go_read_what_is_in_their_pages(seed: int, num_rows: int) -> None:
    chance, pair = random.Random(seed), Pair(seed)
    free = list(range(1, NUM_PAGES))
    live: list[tuple[list[int], int]] = []  # pages and past lengths
    for _ in range(60):
        if len(live) < 2 or (len(live) < 4 and chance.random() < 0.1):
            pages, past = [free.pop(0) for _ in range(6)], chance.randint(1, 9)
            pair.step([pages], [0], num_rows=past, is_decode=False)  # its prompt
            live.append((pages, past))
        pair.step([pages for pages, _ in live], [past for _, past in live], num_rows=num_rows, is_decode=True)
        accepted = chance.randint(1, num_rows)
        live = [(pages, past + accepted) for pages, past in live]
        ended = [item for item in live if item[1] + 2 * num_rows > 6 * PAGE_SIZE]
        if ended:
            live = [item for item in live if item not in ended]
            free = [page for pages, _ in ended for page in pages] + free  # the next one gets them
            pair.keeping.forget()
    assert pair.num_kept > 5


def test_pages_that_change_hands_are_read_anew_once_it_is_told() -> None:
    pair, pages = Pair(0), [[3, 4]]
    for past in (2, 3, 4, 5, 6):
        pair.step(pages, [past], num_rows=1, is_decode=True)
    pair.step(pages, [0], num_rows=5, is_decode=False)  # another sequence's prompt in the same pages
    pair.keeping.forget()
    for past in (5, 6, 7):
        pair.step(pages, [past], num_rows=1, is_decode=True)
    assert pair.num_kept == 5


def test_rows_that_are_moved_are_read_where_they_went() -> None:
    pair, pages = Pair(0), [[3, 4, 5]]
    for past in (4, 4, 4):
        pair.step(pages, [past], num_rows=NUM_ROWS, is_decode=True)
    assert pair.num_kept == 2, "what is moved had been kept"
    pair.move(pages, [4], [[1]])
    for past in (5, 5, 5):
        pair.step(pages, [past], num_rows=NUM_ROWS, is_decode=True)


def test_what_would_take_too_much_memory_is_gathered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_reads, "MOST_BYTES", 100)
    pair = Pair(0)
    for past in (1, 2, 3):
        pair.step([[1, 2]], [past], num_rows=1, is_decode=True)
    assert pair.num_kept == 0
