"""Keys and values in pages, of which each sequence owns any set; the block table says which, in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lossguard_mechanisms.engine.folded_attention import attend_folded
from lossguard_mechanisms.engine.kept_reads import KeptReads
from lossguard_mechanisms.engine.paged_step import MOST_OWN_ROWS, PagedStep, own_bits
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.rows import Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLayout:
    """Where a step's rows write and what they see, the same for all layers. B sequences, at most T rows each."""

    rows: Rows
    writes: Tensor  # [N * key heads] where each row's heads go, among all places of all pages and heads
    blocks: Tensor  # [B * key heads * P] the pages of each head to read
    starts: Tensor  # [B] first place of a sequence's rows, counted within the sequence
    table: Tensor  # [B, P]
    mask: Tensor | None  # [B * key heads, groups * T, P * page_size] added to the scores: 0 or -inf; None: kernels
    step: PagedStep | None = None  # what kernels read; None: gathered pages and matrix products
    kept_writes: Tensor | None = None  # [N * key heads] as ``writes``, among the places read; None: nothing is kept


class PagedKeyValues:
    """Keys and values of all attention layers: [attention layers, pages, key heads, page_size, head_dim] each.

    A head's part of a page is one stretch of memory, so that reading a sequence's pages gives each head its keys in
    order.
    """

    def __init__(
        self,
        config: TargetConfig,
        num_pages: int,
        page_size: int,
        *,
        dtype: torch.dtype,
        device: torch.device | str = "cpu",
        has_kernels: bool = False,
    ) -> None:
        self.page_size = page_size
        self._has_kernels = has_kernels
        self._dtype = dtype
        self._groups = config.num_attention_heads // config.num_key_value_heads
        self._place = {layer: place for place, layer in enumerate(config.attention_layers)}
        self._heads = config.num_key_value_heads
        shape = (len(self._place), num_pages, self._heads, page_size, config.head_dim)
        self.keys = _zeros(shape, dtype=dtype, device=torch.device(device))
        self.values = _zeros(shape, dtype=dtype, device=torch.device(device))
        self._kept = KeptReads()

    def layout(
        self, rows: Rows, block_table: Tensor, *, ancestors: Tensor | None = None, is_decode: bool = False
    ) -> PageLayout:
        """Lay out a step: ``block_table`` [B, pages] covers ``rows.longest_context``.

        ``ancestors`` [B, T, T] (a tree's rows, see ``Tree``): what a row sees of its own step, itself included; None:
        all rows up to itself. Rows are kept at the places after the sequence's past, whatever their positions.
        ``is_decode``: the rows of sequences whose prompts are read, which the steps to come are likely to be of, too.
        """
        num_pages = -(-rows.longest_context // self.page_size)
        table = block_table[:, :num_pages]
        steps = torch.arange(rows.longest, device=table.device)
        places = rows.past_lengths[:, None] + steps  # [B, T]
        pages = table.gather(1, (places // self.page_size).clamp(max=num_pages - 1))
        writes = self._head_places(rows.unpad(pages), rows.unpad(places)).flatten()
        step = self._paged_step(rows, table, writes, ancestors)
        blocks = (table[:, None] * self._heads + self._all_heads(table)).flatten()
        return PageLayout(
            rows=rows,
            writes=writes,
            blocks=blocks,
            starts=rows.past_lengths,
            table=table,
            mask=self._mask(rows, places, num_pages, ancestors) if step is None else None,
            step=step,
            kept_writes=self._kept_writes(rows, places, blocks) if is_decode else None,
        )

    def forget(self) -> None:
        """To be called when pages change hands."""
        self._kept.forget()

    def _kept_writes(self, rows: Rows, places: Tensor, blocks: Tensor) -> Tensor | None:
        """Not on a device, whose answer would have to be waited for."""
        if blocks.device.type != "cpu" or rows.places is not None:
            return None
        if not self._kept.serves(blocks, 2 * len(self._place) * blocks.shape[0] * self.keys[0, 0, 0].nbytes):
            return None
        heads = torch.arange(rows.num_sequences * self._heads).view(-1, 1, self._heads)
        length = blocks.shape[0] // heads.numel() * self.page_size
        return (heads * length + places[..., None]).flatten()

    def _paged_step(self, rows: Rows, table: Tensor, writes: Tensor, ancestors: Tensor | None) -> PagedStep | None:
        """Kernels take steps of few rows without padding."""
        if not self._has_kernels or rows.places is not None or rows.longest > MOST_OWN_ROWS:
            return None
        bits = own_bits(ancestors, batch=rows.num_sequences, own=rows.longest, device=table.device)
        return PagedStep(table=table.contiguous(), past_lengths=rows.past_lengths, bits=bits, writes=writes)

    def _mask(self, rows: Rows, places: Tensor, num_pages: int, ancestors: Tensor | None) -> Tensor:
        seen = torch.arange(num_pages * self.page_size, device=places.device)
        visible = seen <= places[..., None] if ancestors is None else _tree_visible(rows, ancestors, seen)
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=places.device)
        mask.masked_fill_(~visible, float("-inf"))
        return mask.repeat(1, self._groups, 1).repeat_interleave(self._heads, dim=0)

    def attend(self, layer: int, layout: PageLayout, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep the rows' ``key`` and ``value``, then attend from every row to what it sees (see ``Mixing.attend``)."""
        place = self._place[layer]
        pools = self.keys[place], self.values[place]
        if layout.step is not None:
            from lossguard_mechanisms.engine import paged_attention

            paged_attention.write_rows(key, value, *pools, layout.step)
            return paged_attention.attend_pages(query, *pools, layout.step)
        assert layout.mask is not None, "without kernels there is a mask"
        keys = self._exchange(2 * place, pools[0], key, layout)
        values = self._exchange(2 * place + 1, pools[1], value, layout)
        rows = layout.rows
        if rows.longest == 1:  # one row per sequence: heads are in place already
            folded = query.reshape(keys.shape[0], -1, query.shape[-1])
            return attend_folded(folded, keys, values, layout.mask).view(query.shape)
        padded = rows.pad(query).unflatten(2, (self._heads, -1))  # [B, T, key heads, groups, dim]
        folded = padded.permute(0, 2, 3, 1, 4).reshape(keys.shape[0], -1, query.shape[-1])
        mixed = attend_folded(folded, keys, values, layout.mask)
        by_head = mixed.view(-1, self._heads, self._groups, rows.longest, query.shape[-1])
        return rows.unpad(by_head.permute(0, 3, 1, 2, 4).flatten(2, 3))

    def _exchange(self, part: int, pool: Tensor, rows: Tensor, layout: PageLayout) -> Tensor:
        """Write the step's rows [N, key heads, dim]; read [B * key heads, P * page_size, dim]."""
        dim = rows.shape[-1]
        rows = rows.reshape(-1, dim)
        pool.view(-1, dim).index_copy_(0, layout.writes, rows)
        pages = pool.view(-1, self.page_size * dim)
        if layout.kept_writes is None:
            read = pages.index_select(0, layout.blocks)
        else:
            read, is_earlier = self._kept.read(part, pages, layout.blocks)
            if is_earlier:
                read.view(-1, dim).index_copy_(0, layout.kept_writes, rows)
        return read.view(layout.table.shape[0] * self._heads, -1, dim)

    def move(self, layout: PageLayout, nodes: Tensor) -> None:
        """Move the rows ``nodes`` [B, L] of each sequence to the places right after its past, in that order."""
        steps = torch.arange(nodes.shape[1], device=nodes.device)
        self.forget()
        sources = self._flat_places(layout, layout.starts[:, None] + nodes)
        targets = self._flat_places(layout, layout.starts[:, None] + steps)
        for pool in (self.keys, self.values):
            flat = pool.flatten(1, 3)
            flat.index_copy_(1, targets, flat.index_select(1, sources))

    def _flat_places(self, layout: PageLayout, places: Tensor) -> Tensor:
        """[B * L * key heads] of ``places`` [B, L] within the sequences."""
        return self._head_places(layout.table.gather(1, places // self.page_size), places).flatten()

    def _head_places(self, pages: Tensor, places: Tensor) -> Tensor:
        """[..., key heads]: ``places`` within sequences lie in ``pages``."""
        blocks = pages[..., None] * self._heads + torch.arange(self._heads, device=pages.device)
        return blocks * self.page_size + (places % self.page_size)[..., None]

    def _all_heads(self, table: Tensor) -> Tensor:
        return torch.arange(self._heads, device=table.device)[:, None]


def _tree_visible(rows: Rows, ancestors: Tensor, seen: Tensor) -> Tensor:
    """[B, T, S]: the past, and of the step's own rows the ancestors."""
    own = seen - rows.past_lengths[:, None]  # [B, S]: which row of the step lies there
    is_own = (own >= 0) & (own < rows.longest)
    index = own.clamp(0, rows.longest - 1)[:, None].expand(-1, rows.longest, -1)
    return (own < 0)[:, None] | (ancestors.gather(2, index) & is_own[:, None])


def _zeros(shape: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
    """Zeros that a CPU takes memory for only when they are first written."""
    if device.type != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = int(np.prod(shape, dtype=np.int64)) * dtype.itemsize
    return torch.from_numpy(np.zeros(num_bytes, dtype=np.uint8)).view(dtype).view(shape)
