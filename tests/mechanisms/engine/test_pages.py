"""Attention over pages: read in place where contexts lie in one page each, gathered where they do not."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lossguard_mechanisms.engine.pages import PagedKeyValues
from lossguard_mechanisms.targets.config import ATTENTION, TargetConfig
from lossguard_mechanisms.targets.rows import Rows, rows_of

NUM_PAGES, LONG_PAGE, SHORT_PAGE = 12, 32, 4
CONFIG = TargetConfig(
    model_type="qwen3",
    vocab_size=53,
    hidden_size=24,
    intermediate_size=24,
    layer_types=(ATTENTION,),
    num_attention_heads=6,
    num_key_value_heads=2,
    head_dim=8,
    rotary_dim=8,
    rope_theta=1e4,
    rms_norm_eps=1e-6,
    max_position_embeddings=512,
    tie_word_embeddings=True,
    delta=None,
)


def attended(page_size: int, pages: list[int], rows: Rows, ancestors: Tensor | None) -> tuple[Tensor, int]:
    """Attention of random rows after random pasts, sequence b in long page ``pages[b]`` (or the short ones in it)."""
    torch.manual_seed(5)
    values = PagedKeyValues(CONFIG, NUM_PAGES * LONG_PAGE // page_size, page_size, dtype=torch.float32)
    short = LONG_PAGE // page_size
    table = torch.tensor([[page * short + at for at in range(short)] for page in pages])
    past = rows_of(rows.slots.tolist(), [0] * len(pages), rows.past_lengths.tolist())

    def draw(count: int, heads: int) -> Tensor:
        return torch.randn(count, heads, CONFIG.head_dim)

    heads, key_heads = CONFIG.num_attention_heads, CONFIG.num_key_value_heads
    num_past, num_rows = past.positions.shape[0], int(rows.lengths.sum())
    inputs = [draw(num_past, heads), *(draw(num_past, key_heads) for _ in range(2))]
    values.attend(0, values.layout(past, table), *inputs)
    layout = values.layout(rows, table, ancestors=ancestors)
    found = values.attend(0, layout, draw(num_rows, heads), draw(num_rows, key_heads), draw(num_rows, key_heads))
    return found, len(layout.stretches)


@pytest.mark.parametrize(
    ("pages", "num_stretches"),
    [
        ([0, 1, 2, 3, 4, 5, 6, 7], 1),
        ([2, 3, 4, 5, 7, 8, 9, 10], 2),  # a hole
        ([3], 1),
        ([7, 1, 4, 0], 0),  # in no order: gathered
    ],
)
@pytest.mark.parametrize("kind", ["decode", "chain", "tree", "ragged"])
def test_what_is_read_in_place_is_what_is_gathered(pages: list[int], num_stretches: int, kind: str) -> None:
    count = len(pages)
    past = [5 + (5 * row) % 19 for row in range(count)]
    lengths = {"decode": [1] * count, "ragged": [1 + row % 3 for row in range(count)]}.get(kind, [5] * count)
    rows = rows_of(list(range(count)), past, lengths)
    ancestors = None
    if kind == "tree":
        ancestors = torch.eye(5, dtype=torch.bool).repeat(count, 1, 1)
        ancestors[:, :, 0] = True
        ancestors[:, 3, 1] = True
    in_place, found = attended(LONG_PAGE, pages, rows, ancestors)
    gathered, none = attended(SHORT_PAGE, pages, rows, ancestors)
    assert (found, none) == (num_stretches, 0)
    torch.testing.assert_close(in_place, gathered, rtol=1e-5, atol=1e-6)


def test_contexts_of_several_pages_are_gathered() -> None:
    rows = rows_of([0, 1], [SHORT_PAGE, SHORT_PAGE], [1, 1])
    _, num_stretches = attended(SHORT_PAGE, [0, 1], rows, None)
    assert num_stretches == 0
