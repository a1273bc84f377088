"""Columns of forced scores from hidden states, without ever holding a batch's logits.

Most rows of a lossless system are near the top of the distribution, so the common path visits the vocabulary tile by
tile and keeps per row: the best logits, the served token's logit and a running sum of exponentials. Rows whose rank
that does not settle (served token outside the top-k, equal logits among the best) and sampled rows get their whole
logits, a few rows at a time.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard.scoring.columns import NOT_FINITE
from lossguard.scoring.lm_head import Fp32Head
from lossguard.scoring.replayed_parameters import MASKED, RowContext, replay
from lossguard.scoring.sampled_columns import SamplingColumns, sampled_columns

TOP_BLOCK = 128
"""Columns of a block whose maximum decides whether it can hold one of the best logits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RowsToScore:
    """Hidden states with what was served after them. ``sampling`` is None if every row is greedy."""

    hidden: Tensor  # [N, D] in the model's dtype
    served: Tensor  # [N] int64; ids outside the vocabulary do not exist
    sampling: SamplingColumns | None
    contexts: Sequence[RowContext] | None = None  # [N] where parameters are to be replayed in every row


@dataclass(frozen=True, slots=True, kw_only=True)
class TileSizes:
    """How much of the logits may exist at once."""

    vocab_tile: int  # columns of a tile
    tile_rows: int  # rows of a tile
    dense_rows: int  # rows whose whole logits are held
    dense_part: int  # of those, how many are worked on together


def tile_sizes(device: torch.device, vocab_size: int) -> TileSizes:
    """Tiles that stay in a CPU's cache; on a GPU whole rows, since there every tile costs launches and a merge."""
    if device.type == "cuda":
        return TileSizes(vocab_tile=vocab_size, tile_rows=512, dense_rows=256, dense_part=256)
    return TileSizes(vocab_tile=min(2048, vocab_size), tile_rows=2**31, dense_rows=64, dense_part=16)


def score_rows(head: Fp32Head, rows: RowsToScore, top_k: int, sizes: TileSizes) -> dict[str, Tensor]:
    """All columns of ``ForcedScores`` for N rows, as tensors on the head's device.

    Rows with a NaN or infinite logit have ``finite`` False and what ``NOT_FINITE`` says in the other columns. Ids that
    do not exist have gap inf, rank V and log-probability -inf.
    """
    prepared = head.prepare(rows.hidden)
    served = rows.served.to(head.device)
    served = torch.where((served >= 0) & (served < head.vocab_size), served, -1)
    if rows.sampling is None and rows.contexts is None:
        columns = _tiled(head, prepared, served, top_k, sizes)
        open_rows = torch.nonzero(columns.pop("open")).squeeze(1)
    else:
        columns = _empty_columns(len(served), top_k, head.device, rows)
        open_rows = torch.arange(len(served), device=head.device)
    for group in open_rows.split(sizes.dense_rows):
        logits = head.logits(prepared[group], 0, head.vocab_size)
        for part, index in zip(logits.split(sizes.dense_part), group.split(sizes.dense_part), strict=True):
            for name, values in _dense(part, served[index], top_k, _rows_of(rows, index)).items():
                columns[name][index] = values.to(columns[name].dtype)
    return _with_conventions(columns, served, head.vocab_size)


def _rows_of(rows: RowsToScore, index: Tensor) -> RowsToScore:
    """Some of the rows."""
    return RowsToScore(
        hidden=rows.hidden,
        served=rows.served,
        sampling=None if rows.sampling is None else rows.sampling.rows(index),
        contexts=None if rows.contexts is None else [rows.contexts[row] for row in index.tolist()],
    )


def _tiled(head: Fp32Head, prepared: Tensor, served: Tensor, top_k: int, sizes: TileSizes) -> dict[str, Tensor]:
    groups = zip(prepared.split(sizes.tile_rows), served.split(sizes.tile_rows), strict=True)
    parts = [_tiled_group(head, hidden, tokens, top_k, sizes) for hidden, tokens in groups]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}


def _tiled_group(head: Fp32Head, prepared: Tensor, served: Tensor, top_k: int, sizes: TileSizes) -> dict[str, Tensor]:
    state = _Running.start(len(served), top_k + 1, head.device)
    # a product that brings its own result needs no buffer: two would double the memory
    buffer = torch.empty(len(served), sizes.vocab_tile, device=head.device) if head.writes_out else None
    for start in range(0, head.vocab_size, sizes.vocab_tile):
        stop = min(start + sizes.vocab_tile, head.vocab_size)
        out = buffer if stop - start == sizes.vocab_tile else None  # the last tile may be narrower
        state.visit(head.logits(prepared, start, stop, out), start, served)
    return state.columns(served, top_k)


@dataclass(slots=True, kw_only=True)
class _Running:
    """What the tiles seen so far say about each row."""

    values: Tensor  # [N, k + 1] best logits so far, descending
    ids: Tensor  # [N, k + 1]
    mine: Tensor  # [N] the served token's logit
    lowest: Tensor  # [N]
    total: Tensor  # [N] float64, sum of exp(logit - best)

    @classmethod
    def start(cls, num_rows: int, width: int, device: torch.device) -> _Running:
        return cls(
            values=torch.full((num_rows, width), -math.inf, device=device),
            ids=torch.full((num_rows, width), -1, dtype=torch.int64, device=device),
            mine=torch.zeros(num_rows, device=device),
            lowest=torch.full((num_rows,), math.inf, device=device),
            total=torch.zeros(num_rows, dtype=torch.float64, device=device),
        )

    def visit(self, logits: Tensor, start: int, served: Tensor) -> None:
        """Take in a tile of logits [N, n], which is overwritten."""
        highest = logits.amax(dim=-1)
        self.lowest = torch.minimum(self.lowest, logits.amin(dim=-1))
        inside = torch.nonzero((served >= start) & (served < start + logits.shape[1])).squeeze(1)
        self.mine[inside] = logits[inside, served[inside] - start]
        best = self.values[:, 0].clone()
        self._merge(logits, highest, start)
        shift = self.values[:, 0]
        tile = logits.sub_(shift[:, None]).exp_().sum(dim=-1)
        self.total = self.total * (best - shift).double().exp() + tile

    def _merge(self, logits: Tensor, highest: Tensor, start: int) -> None:
        width = self.values.shape[1]
        rows = torch.nonzero(~(highest < self.values[:, -1])).squeeze(1)
        if len(rows) == 0:
            return
        some = logits if len(rows) == len(logits) else logits[rows]
        found_values, found_ids = block_top(some, min(width, logits.shape[1]))
        values = torch.cat([self.values[rows], found_values], dim=1)
        ids = torch.cat([self.ids[rows], found_ids + start], dim=1)
        best = values.topk(width, dim=-1)
        self.values[rows] = best.values
        self.ids[rows] = ids.gather(1, best.indices)

    def columns(self, served: Tensor, top_k: int) -> dict[str, Tensor]:
        """Columns, and ``open``: rows whose rank or order this does not settle."""
        best = self.values[:, 0]
        hits = self.ids[:, :top_k] == served[:, None]
        finite = best.isfinite() & self.lowest.isfinite()
        tied = (self.values[:, 1:] == self.values[:, :-1]).any(dim=-1)
        missed = ~hits.any(dim=-1) & (served >= 0)
        return {
            "gap": best - self.mine,
            "best_logit": best.clone(),
            "rank": hits.int().argmax(dim=-1),
            "best_id": self.ids[:, 0].clone(),
            "logprob": (self.mine.double() - best.double() - self.total.log()).float(),
            "top_ids": self.ids[:, :top_k].clone(),
            "top_logits": self.values[:, :top_k].clone(),
            "finite": finite,
            "open": (tied | missed) & finite,
        }


def block_top(logits: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """The ``count`` best logits of each row [N, n] and their columns; equal ones in any order.

    They lie in the ``count`` blocks with the highest maxima (and in what is left of the row after whole blocks), so
    one pass for the maxima replaces a selection over the whole row.
    """
    num_blocks = logits.shape[1] // TOP_BLOCK
    if num_blocks <= count:
        found = logits.topk(count, dim=-1)
        return found.values, found.indices
    whole = logits[:, : num_blocks * TOP_BLOCK].unflatten(1, (num_blocks, TOP_BLOCK))  # [N, blocks, TOP_BLOCK]
    blocks = whole.amax(dim=-1).topk(count, dim=-1).indices  # [N, count]
    inside = torch.arange(TOP_BLOCK, device=logits.device)
    columns = (blocks[:, :, None] * TOP_BLOCK + inside).flatten(1)  # [N, count * TOP_BLOCK]
    rest = torch.arange(num_blocks * TOP_BLOCK, logits.shape[1], device=logits.device).expand(len(logits), -1)
    columns = torch.cat([columns, rest], dim=1)
    found = logits.gather(1, columns).topk(count, dim=-1)
    return found.values, columns.gather(1, found.indices)


def _dense(logits: Tensor, served: Tensor, top_k: int, rows: RowsToScore) -> dict[str, Tensor]:
    """Columns from whole logits [R, V], which are overwritten; of ``rows``, only how they are sampled and replayed."""
    finite = logits.amax(dim=-1).isfinite() & logits.amin(dim=-1).isfinite()
    logits[~finite] = 0.0
    place = served.clamp(min=0)[:, None]
    plain = {} if rows.contexts is None else _replayed(logits, place, rows.contexts)
    mine = logits.gather(1, place)
    values, ids = _ordered_top(logits, top_k)
    equal_before = (logits == mine) & (torch.arange(logits.shape[1], device=logits.device) < place)
    columns = {
        "gap": values[:, 0] - mine.squeeze(1),
        "best_logit": values[:, 0],
        "rank": ((logits > mine) | equal_before).sum(dim=-1),
        "best_id": ids[:, 0],
        "logprob": mine.squeeze(1) - logits.logsumexp(dim=-1),
        "top_ids": ids,
        "top_logits": values,
        "finite": finite,
    }
    forbidden = mine.squeeze(1) <= MASKED / 2
    columns["gap"] = columns["gap"].masked_fill(forbidden, math.inf)
    columns["top_logits"] = values.masked_fill(values <= MASKED / 2, -math.inf)
    if rows.sampling is not None:
        columns |= sampled_columns(logits, served, rows.sampling)
        columns["in_support"] &= ~forbidden
        columns["sampled_logprob"].masked_fill_(forbidden, -math.inf)
        columns["support_gap"].masked_fill_(forbidden, math.inf)
    return columns | plain


def _replayed(logits: Tensor, place: Tensor, contexts: Sequence[RowContext]) -> dict[str, Tensor]:
    """Columns of the logits as they are, after which the parameters of each row are applied to them."""
    best, best_id = logits.max(dim=-1)
    mine = logits.gather(1, place).squeeze(1)
    plain = {"logprob": mine - logits.logsumexp(dim=-1), "plain_gap": best - mine, "plain_best_id": best_id}
    return {**plain, "replayed": replay(logits, contexts)}


def _ordered_top(logits: Tensor, top_k: int) -> tuple[Tensor, Tensor]:
    """The ``top_k`` best logits and ids, equal logits by lower id."""
    values, ids = logits.topk(top_k + 1, dim=-1)
    tied = torch.nonzero((values[:, 1:] == values[:, :-1]).any(dim=-1)).squeeze(1)
    if len(tied):
        ordered = logits[tied].sort(dim=-1, descending=True, stable=True)
        values[tied] = ordered.values[:, : top_k + 1]
        ids[tied] = ordered.indices[:, : top_k + 1]
    return values[:, :top_k], ids[:, :top_k]


def _empty_columns(num_rows: int, top_k: int, device: torch.device, rows: RowsToScore) -> dict[str, Tensor]:
    floats, whole, flags = ["gap", "best_logit", "logprob"], ["rank", "best_id"], ["finite"]
    if rows.sampling is not None:
        floats += ["entropy", "surprisal_variance", "pit_low", "pit_high", "sampled_logprob", "support_gap"]
        flags += ["in_support"]
    if rows.contexts is not None:
        floats, whole, flags = [*floats, "plain_gap"], [*whole, "plain_best_id"], [*flags, "replayed"]
    columns = {name: torch.zeros(num_rows, device=device) for name in floats}
    columns |= {name: torch.zeros(num_rows, dtype=torch.int64, device=device) for name in whole}
    columns["top_ids"] = torch.zeros(num_rows, top_k, dtype=torch.int64, device=device)
    columns["top_logits"] = torch.zeros(num_rows, top_k, device=device)
    return columns | {name: torch.zeros(num_rows, dtype=torch.bool, device=device) for name in flags}


def _with_conventions(columns: dict[str, Tensor], served: Tensor, vocab_size: int) -> dict[str, Tensor]:
    absent = served < 0
    for name in {"gap", "plain_gap"} & columns.keys():
        columns[name].masked_fill_(absent, math.inf)
    columns["rank"].masked_fill_(absent, vocab_size)
    columns["logprob"].masked_fill_(absent, -math.inf)
    broken = ~columns["finite"]
    for name, value in NOT_FINITE.items():
        if name in columns:
            column = columns[name]
            column.masked_fill_(broken if column.ndim == 1 else broken[:, None], value)
    return columns
