"""Keys and values in pages, of which each sequence owns any set; the block table says which, in order."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lossguard_kernels.forests.forest import MAX_NODES, Forest, forest_of_batch
from lossguard_kernels.tree_attention.operation import attend, compact, write
from lossguard_kernels.tree_attention.pages import PageTable
from lossguard_mechanisms.engine.folded_attention import attend_folded
from lossguard_mechanisms.engine.kept_reads import KeptReads
from lossguard_mechanisms.targets.config import TargetConfig
from lossguard_mechanisms.targets.rows import Rows
from lossguard_mechanisms.trees.tree import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class PageLayout:
    """Where a step's rows write and what they see, the same for all layers. B sequences, at most T rows each."""

    rows: Rows
    starts: Tensor  # [B] first place of a sequence's rows, counted within the sequence
    table: Tensor  # [B, P]
    way: Forest | Gathering  # kernels read pages where they lie, torch's own operations gather them

    @property
    def pages(self) -> PageTable:
        """As kernels take it."""
        return PageTable(table=self.table, past_lengths=self.starts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Gathering:
    """What torch's own operations need of a layout."""

    writes: Tensor  # [N * key heads] where each row's heads go, among all places of all pages and heads
    blocks: Tensor  # [B * key heads * P] the pages of each head to read
    mask: Tensor  # [B * key heads, groups * T, P * page_size] added to the scores: 0 or -inf
    kept_writes: Tensor | None  # [N * key heads] as ``writes``, among the places read; None: nothing is kept


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
        table = block_table[:, :num_pages].contiguous()
        is_for_kernels = self._has_kernels and rows.places is None and rows.longest <= MAX_NODES  # few, unpadded
        way = (
            _forest(rows, ancestors) if is_for_kernels else self._gathering(rows, table, ancestors, is_decode=is_decode)
        )
        return PageLayout(rows=rows, starts=rows.past_lengths, table=table, way=way)

    def _gathering(self, rows: Rows, table: Tensor, ancestors: Tensor | None, *, is_decode: bool) -> Gathering:
        num_pages = table.shape[1]
        steps = torch.arange(rows.longest, device=table.device)
        places = rows.past_lengths[:, None] + steps  # [B, T]
        pages = table.gather(1, (places // self.page_size).clamp(max=num_pages - 1))
        blocks = (table[:, None] * self._heads + self._all_heads(table)).flatten()
        return Gathering(
            writes=self._head_places(rows.unpad(pages), rows.unpad(places)).flatten(),
            blocks=blocks,
            mask=self._mask(rows, places, num_pages, ancestors),
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

    def _mask(self, rows: Rows, places: Tensor, num_pages: int, ancestors: Tensor | None) -> Tensor:
        seen = torch.arange(num_pages * self.page_size, device=places.device)
        visible = seen <= places[..., None] if ancestors is None else _tree_visible(rows, ancestors, seen)
        mask = torch.zeros(visible.shape, dtype=self._dtype, device=places.device)
        mask.masked_fill_(~visible, float("-inf"))
        return mask.repeat(1, self._groups, 1).repeat_interleave(self._heads, dim=0)

    def attend(self, layer: int, layout: PageLayout, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Keep the rows' ``key`` and ``value``, then attend from every row to what it sees (see ``Mixing.attend``)."""
        place, way = self._place[layer], layout.way
        pools = self.keys[place], self.values[place]
        if isinstance(way, Forest):
            write(key, value, *pools, layout.pages, way)
            return attend(query, *pools, layout.pages, way)
        rows = layout.rows
        by_head = (rows.num_sequences * self._heads, -1, query.shape[-1])
        keys = self._exchange(2 * place, pools[0], key, way).view(by_head)
        values = self._exchange(2 * place + 1, pools[1], value, way).view(by_head)
        if rows.longest == 1:  # one row per sequence: heads are in place already
            folded = query.reshape(keys.shape[0], -1, query.shape[-1])
            return attend_folded(folded, keys, values, way.mask).view(query.shape)
        padded = rows.pad(query).unflatten(2, (self._heads, -1))  # [B, T, key heads, groups, dim]
        folded = padded.permute(0, 2, 3, 1, 4).reshape(keys.shape[0], -1, query.shape[-1])
        mixed = attend_folded(folded, keys, values, way.mask)
        mixed = mixed.view(-1, self._heads, self._groups, rows.longest, query.shape[-1])
        return rows.unpad(mixed.permute(0, 3, 1, 2, 4).flatten(2, 3))

    def _exchange(self, part: int, pool: Tensor, rows: Tensor, way: Gathering) -> Tensor:
        """Write the step's rows [N, key heads, dim]; read [B * key heads * P, page_size * dim]."""
        dim = rows.shape[-1]
        rows = rows.reshape(-1, dim)
        pool.view(-1, dim).index_copy_(0, way.writes, rows)
        pages = pool.view(-1, self.page_size * dim)
        if way.kept_writes is None:
            return pages.index_select(0, way.blocks)
        read, is_earlier = self._kept.read(part, pages, way.blocks)
        if is_earlier:
            read.view(-1, dim).index_copy_(0, way.kept_writes, rows)
        return read

    def move(self, layout: PageLayout, path: Path) -> None:
        """Move the rows of each sequence's path to the places right after its past, in that order."""
        if isinstance(layout.way, Forest):
            compact(self.keys, self.values, layout.pages, layout.way, path.last)
            return
        self.forget()
        nodes = path.nodes
        steps = torch.arange(nodes.shape[1], device=nodes.device)
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


def _forest(rows: Rows, ancestors: Tensor | None) -> Forest:
    """Every row and what it sees of its own step: ``ancestors``, or all rows up to itself."""
    device = rows.past_lengths.device
    powers = torch.ones((), dtype=torch.int64, device=device) << torch.arange(rows.longest, device=device)
    if ancestors is None:
        return forest_of_batch(powers.cumsum(0).expand(rows.num_sequences, -1))
    return forest_of_batch((ancestors * powers).sum(-1))


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
