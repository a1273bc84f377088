"""Columns of sampled requests: moments and probability integral transform under the request's own sampling.

Filters act in the order of transformers: temperature, top-k, top-p, min-p. Each of them keeps the tokens above a cut in
descending order of probability, so that the three cuts become one threshold on the logit. Tokens equal to the cut are
kept, as transformers' top-k and min-p do (its top-p parts equal tokens by the order of a sort).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor

from lossguard.records import SamplingParams

_FIRST_LOOK: Final = 64  # enough for most rows of a language model; the search for more costs as much as it finds


@dataclass(frozen=True, slots=True, kw_only=True)
class SamplingColumns:
    """Sampling parameters per row, each [N]; temperature 0 marks a greedy row."""

    temperature: Tensor  # float32
    top_k: Tensor  # int64, 0: off
    top_p: Tensor  # float32
    min_p: Tensor  # float32

    def rows(self, index: Tensor) -> SamplingColumns:
        """These rows only."""
        return SamplingColumns(
            temperature=self.temperature[index],
            top_k=self.top_k[index],
            top_p=self.top_p[index],
            min_p=self.min_p[index],
        )


def stack_sampling(parameters: list[SamplingParams], index: Tensor, device: torch.device) -> SamplingColumns:
    """Columns for rows whose parameters are ``parameters[index[row]]``."""
    at = index.to(device)

    def column(values: list[float], dtype: torch.dtype) -> Tensor:
        return torch.tensor(values, dtype=dtype, device=device)[at]

    return SamplingColumns(
        temperature=column([item.temperature for item in parameters], torch.float32),
        top_k=column([float(item.top_k) for item in parameters], torch.int64),
        top_p=column([item.top_p for item in parameters], torch.float32),
        min_p=column([item.min_p for item in parameters], torch.float32),
    )


def sampled_columns(logits: Tensor, served: Tensor, sampling: SamplingColumns) -> dict[str, Tensor]:
    """Log-probability, entropy, variance of the surprisal, PIT bounds and support for rows with a temperature over 0.

    ``logits`` [N, V] FP32 and finite (overwritten), ``served`` [N] with -1 for ids that do not exist. Entropy in nats,
    variance in nats squared. The PIT is ``F(y-) .. F(y)`` with tokens in descending probability, ties by lower id
    (Rosenblatt transform); a token outside the support has both bounds at 1, log-probability -inf, and in
    ``support_gap`` how far outside it is (``_support_gap``).
    """
    scaled = logits.div_(sampling.temperature[:, None])
    scaled.sub_(scaled.amax(dim=-1, keepdim=True))
    cut = _support_cut(scaled, sampling)
    place = served.clamp(min=0)[:, None]
    mine = scaled.gather(1, place)
    allowed = (mine >= cut[:, None]).squeeze(1) & (served >= 0)
    gap = _support_gap(scaled, mine.squeeze(1), sampling, ~allowed & (served >= 0))
    weight = scaled.exp().masked_fill_(scaled < cut[:, None], 0.0)
    total = weight.sum(dim=-1).double()
    low = _mass_before(weight, scaled, mine, place) / total
    high = low + mine.squeeze(1).double().exp() / total
    moment = weight.mul_(scaled)
    first = moment.sum(dim=-1).double() / total
    second = moment.mul_(scaled).sum(dim=-1).double() / total
    return {
        "entropy": (total.log() - first).clamp_(min=0.0).float(),
        "surprisal_variance": (second - first.square()).clamp_(min=0.0).float(),
        "pit_low": torch.where(allowed, low.clamp(max=1.0), 1.0).float(),
        "pit_high": torch.where(allowed, high.clamp(max=1.0), 1.0).float(),
        "in_support": allowed,
        "sampled_logprob": torch.where(allowed, mine.squeeze(1).double() - total.log(), -math.inf).float(),
        "support_gap": torch.where(served >= 0, gap, math.inf),
    }


def _support_gap(scaled: Tensor, mine: Tensor, sampling: SamplingColumns, outside: Tensor) -> Tensor:
    """By how many nats differences of logits would have to be off for the token to be allowed [N]; 0 inside.

    To be kept by top-k or min-p a logit must reach the cut. By top-p it is enough too that the probability before it
    falls to ``top_p``, and if differences of logits are off by d, the odds of a set of tokens are off by at most e^d.
    """
    gap = torch.zeros_like(mine)
    rows = torch.nonzero(outside).squeeze(1)
    if len(rows) == 0:
        return gap
    some, own = sampling.rows(rows), mine[rows].double()
    ordered = scaled[rows].double().sort(dim=-1, descending=True).values
    count = torch.where(some.top_k > 0, some.top_k, ordered.shape[1]).clamp(max=ordered.shape[1])
    lowest = ordered.gather(1, count[:, None] - 1)  # [n, 1] that top-k keeps
    needed = torch.maximum(lowest.squeeze(1) - own, some.min_p.double().log() - own)
    share = ordered.masked_fill(ordered < lowest, -math.inf).softmax(dim=-1)
    last = ((share.cumsum(dim=-1) - share) < some.top_p[:, None].double()).sum(dim=-1, keepdim=True).clamp(min=1)
    by_logit = ordered.gather(1, last - 1).squeeze(1) - own
    before = share.masked_fill(ordered <= own[:, None], 0.0).sum(dim=-1).clamp(max=1.0)
    by_mass = before.logit() - some.top_p.double().logit()
    by_top_p = torch.where(some.top_p < 1.0, torch.minimum(by_logit, by_mass), 0.0)
    needed = torch.maximum(needed, by_top_p).clamp(min=0.0)
    gap[rows] = (needed * some.temperature).float()
    return gap


def _mass_before(weight: Tensor, scaled: Tensor, mine: Tensor, place: Tensor) -> Tensor:
    """Sum of the weights of tokens before the served one [N]: larger logits, and equal ones of lower id."""
    mass = weight.masked_fill(scaled <= mine, 0.0).sum(dim=-1).double()
    equal = torch.nonzero((scaled == mine).sum(dim=-1) > 1).squeeze(1)
    if len(equal):
        ids = torch.arange(scaled.shape[1], device=place.device)
        before = (scaled[equal] == mine[equal]) & (ids < place[equal])
        mass[equal] += (weight[equal] * before).sum(dim=-1).double()
    return mass


def _support_cut(scaled: Tensor, sampling: SamplingColumns) -> Tensor:
    """Lowest scaled logit [N], relative to the best, that the request's filters keep."""
    vocab_size = scaled.shape[1]
    cut = torch.where(sampling.min_p > 0, sampling.min_p.log(), -math.inf)
    filtered = (sampling.top_k > 0) | (sampling.top_p < 1.0)
    rows = torch.nonzero(filtered).squeeze(1)
    look = min(_FIRST_LOOK, vocab_size)
    while len(rows):
        found, settled = _sorted_cut(scaled[rows], sampling.rows(rows), look)
        done = rows[settled]
        cut[done] = torch.maximum(cut[done], found[settled])
        rows = rows[~settled]
        look = min(look * 8, vocab_size)
    return cut


def _sorted_cut(scaled: Tensor, sampling: SamplingColumns, look: int) -> tuple[Tensor, Tensor]:
    """Cut by top-k then top-p from the ``look`` best logits, and for which rows those were enough."""
    vocab_size = scaled.shape[1]
    values = scaled.topk(look, dim=-1).values
    count = torch.where(sampling.top_k > 0, sampling.top_k, vocab_size).clamp(max=vocab_size)
    seen = count <= look
    kth = values.gather(1, (count.clamp(max=look) - 1)[:, None]).squeeze(1)
    kth = torch.where(sampling.top_k > 0, kth, -math.inf)
    total = torch.where(scaled >= kth[:, None], scaled.exp(), 0.0).sum(dim=-1, dtype=torch.float64)
    weight = torch.where(values >= kth[:, None], values.double().exp(), 0.0)
    before = (weight.cumsum(dim=-1) - weight) / total[:, None]
    kept = (before < sampling.top_p[:, None].double()) & (weight > 0)
    kept[:, 0] = True
    last = kept.sum(dim=-1) - 1
    pth = torch.where(sampling.top_p < 1.0, values.gather(1, last[:, None]).squeeze(1), -math.inf)
    enough = (sampling.top_p >= 1.0) | (last + 1 < look) | (look == vocab_size)
    return torch.maximum(kth, pth), enough & (seen | (sampling.top_k == 0) | (look == vocab_size))
