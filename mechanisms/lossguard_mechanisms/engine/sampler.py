"""From logits to tokens: greedy, or by inverse transform with one counter-based number per row.

A draw is the first token, in the order of ids, at which the cumulative probability exceeds the number. Small errors of
the logits move it little, so that the same request with the same key gets the same token from any batch, up to ties.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from lossguard.records import SamplingParams
from lossguard_mechanisms.engine.counter_random import uniforms

_STRETCHES = (128, 64, 32, 16)


@dataclass(frozen=True, slots=True, kw_only=True)
class RowSampling:
    """What one row of logits asks of the sampler."""

    params: SamplingParams
    key: int
    position: int
    """Absolute position of the token to be chosen."""
    banned_ids: tuple[int, ...] = ()
    """Stop ids, as long as ``min_tokens`` are not reached."""
    process: Callable[[Tensor], Tensor] | None = None
    """From scores [1, V] in float32, after the bans, to those that the token is chosen by."""


def choose(logits: Tensor, rows: Sequence[RowSampling]) -> Tensor:
    """One token id [N] per row of ``logits`` [N, V]; ``rows`` has N entries."""
    assert logits.shape[0] == len(rows), "one entry per row of logits"
    allowed = _processed(_without_banned(logits, rows), rows)
    chosen = best_ids(allowed)
    sampled = [index for index, row in enumerate(rows) if not row.params.is_greedy]
    if sampled:
        index = torch.tensor(sampled, device=logits.device)
        chosen[index] = _draw(allowed[index].float(), [rows[at] for at in sampled])
    return chosen


def best_ids(logits: Tensor) -> Tensor:
    """Argmax [N] of ``logits`` [N, V].

    On a CPU torch finds the best of low-precision rows element by element; here the best stretch comes first, then its
    best element, which leaves the first of equal ones first.
    """
    stretch = _stretch(logits.shape[1])
    if logits.is_cuda or stretch == 1:
        return logits.argmax(dim=-1)
    stretches = logits.unflatten(1, (-1, stretch))
    best = stretches.amax(dim=-1).float().argmax(dim=-1)
    inside = stretches[torch.arange(logits.shape[0]), best].float().argmax(dim=-1)
    ids: Tensor = best * stretch + inside
    return ids


def filtered_probabilities(logits: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """Probabilities [N, V] in float32 after temperature, top-k, top-p and min-p, in transformers' order.

    ``logits`` [N, V] float32; temperatures are over 0. Each filter keeps the tokens above a cut; those equal stay.
    """
    scaled = logits / _column(logits, [item.temperature for item in params])
    cut = torch.full_like(scaled[:, :1], -torch.inf)
    if any(item.top_k or item.top_p < 1.0 for item in params):
        cut = torch.maximum(cut, _sorted_cut(scaled, params))
    if any(item.min_p for item in params):
        cut = torch.maximum(cut, scaled.amax(-1, keepdim=True) + _column(logits, [item.min_p for item in params]).log())
    return scaled.masked_fill(scaled < cut, -torch.inf).softmax(-1)


def drawn_ids(probabilities: Tensor, numbers: Tensor) -> Tensor:
    """The draw [N] of each row of ``probabilities`` [N, V] (float32) by ``numbers`` [N] (float64, in (0, 1]).

    The stretch of the vocabulary in which the cumulative probability passes the number comes first, then the token in
    it: one pass over all probabilities and sums in float64 over few of them, without asking the device for anything.
    """
    stretch = _stretch(probabilities.shape[1])
    if stretch == 1:
        sums = probabilities.cumsum(-1, dtype=torch.float64)
        return _first_above(sums, numbers[:, None] * sums[:, -1:])[:, 0]
    parts = probabilities.unflatten(1, (-1, stretch))
    ends = parts.sum(-1, dtype=torch.float64).cumsum(-1)
    wanted = numbers[:, None] * ends[:, -1:]
    at = _first_above(ends, wanted)
    before = torch.where(at > 0, ends.gather(1, (at - 1).clamp(min=0)), 0.0)
    inside = parts.gather(1, at[..., None].expand(-1, -1, stretch))[:, 0].cumsum(-1, dtype=torch.float64)
    ids: Tensor = (at * stretch + _first_above(inside, wanted - before))[:, 0]
    return ids


def chosen_ids(logits: Tensor, temperatures: Tensor, numbers: Tensor) -> Tensor:
    """``choose`` for rows without filters, bans or processors, of which all is on the device: [N] of ``logits`` [N, V].

    ``temperatures`` [N] float64, 0 for greedy rows; ``numbers`` [N] float64, those of ``counter_random.uniforms``.
    """
    is_greedy = temperatures == 0.0
    scaled = logits.float() / torch.where(is_greedy, 1.0, temperatures).float()[:, None]
    return torch.where(is_greedy, best_ids(logits), drawn_ids(scaled.softmax(-1), numbers))


def log_probabilities(logits: Tensor) -> Tensor:
    """Log-probabilities [N, V] in float32, before temperature and filters: what replies report."""
    return logits.float().log_softmax(-1)


def _stretch(vocab_size: int) -> int:
    """Into stretches of so many tokens a vocabulary is divided; 1 where none of the sizes divides it."""
    return next((size for size in _STRETCHES if vocab_size % size == 0), 1)


def _first_above(sums: Tensor, wanted: Tensor) -> Tensor:
    """[N, 1] the first place where growing ``sums`` [N, M] exceed ``wanted`` [N, 1]: one where they grow, always.

    Rounding may lift ``wanted`` to the last sum, behind which no token is possible.
    """
    below = torch.minimum(wanted, sums[:, -1:] * (1.0 - torch.finfo(torch.float64).eps))
    return torch.searchsorted(sums, below, right=True).clamp(max=sums.shape[1] - 1)


def _draw(logits: Tensor, rows: Sequence[RowSampling]) -> Tensor:
    probabilities = filtered_probabilities(logits, [row.params for row in rows])
    keys = torch.tensor([row.key for row in rows], device=logits.device)
    positions = torch.tensor([row.position for row in rows], device=logits.device)
    return drawn_ids(probabilities, uniforms(keys, positions))


def _without_banned(logits: Tensor, rows: Sequence[RowSampling]) -> Tensor:
    places = [(index, token) for index, row in enumerate(rows) for token in row.banned_ids]
    if not places:
        return logits
    index = torch.tensor(places, device=logits.device)
    return logits.index_put((index[:, 0], index[:, 1]), logits.new_tensor(-torch.inf))


def _processed(logits: Tensor, rows: Sequence[RowSampling]) -> Tensor:
    if all(row.process is None for row in rows):
        return logits
    scores = logits.to(torch.float32, copy=True)  # a processor may write into what it is given
    parts = [
        part if row.process is None else row.process(part) for part, row in zip(scores.split(1), rows, strict=True)
    ]
    return torch.cat(parts)


def _sorted_cut(scaled: Tensor, params: Sequence[SamplingParams]) -> Tensor:
    """The lowest scaled logit [N, 1] that top-k, then top-p, keep."""
    vocab_size = scaled.shape[1]
    ordered = scaled.sort(dim=-1, descending=True).values
    counts = torch.tensor([min(item.top_k or vocab_size, vocab_size) for item in params], device=scaled.device)
    by_count = ordered.gather(1, counts[:, None] - 1)
    probabilities = ordered.masked_fill(ordered < by_count, -torch.inf).softmax(-1)
    before = probabilities.cumsum(-1) - probabilities
    num_kept = (before < _column(scaled, [item.top_p for item in params])).sum(-1, keepdim=True).clamp(min=1)
    has_mass = torch.tensor([item.top_p < 1.0 for item in params], device=scaled.device)[:, None]
    by_mass = torch.where(has_mass, ordered.gather(1, num_kept - 1), -torch.inf)
    return torch.maximum(by_count, by_mass)


def _column(like: Tensor, values: Sequence[float]) -> Tensor:
    """[N, 1] in the dtype and on the device of ``like``."""
    return like.new_tensor(values)[:, None]
