"""Simulated comparisons: what the checks sum over the tokens of each request, drawn from a stock's statistics.

Both arms and both calibration services draw every token on their own, given a prompt's own mismatch and tie rates:
the worst case, because real arms share a prefix and with it their mismatches. One request is one cluster.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import BoolArray, FloatArray, IntArray
from lossguard.checks.symmetry import NUM_BINS
from lossguard.selftest.cells import Cell
from lossguard.selftest.statistics import StockStatistics, reply_lengths

POSITION_EDGES = np.array([1, 17, 65, 257, 1025, 2049])
"""First positions of the buckets after the first (lossguard.checks.bucket_masks)."""
NUM_POSITIONS = len(POSITION_EDGES) + 1
BURSTY_SHARE = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmSums:
    """One arm of M comparisons of K requests."""

    tokens: FloatArray  # [M, K]
    mismatches: FloatArray  # [M, K]
    gaps: FloatArray  # [M, K] sum of gaps clipped at delta, nats
    hits: FloatArray  # [M, K] tokens with a gap
    flip_costs: FloatArray  # [M, K] nats: always picking the lower-ranked of two near-tied tokens
    ties: FloatArray  # [M, K, NUM_BINS]
    lower: FloatArray  # [M, K, NUM_BINS]
    mismatches_at: FloatArray  # [M, K, NUM_POSITIONS]
    finish_mismatches: FloatArray  # [M, K] of last tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Prompts:
    """[M, K] what both arms share: the prompt, and its own rates."""

    row: IntArray  # of the statistics
    mismatch_rate: FloatArray
    tie_rate: FloatArray


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparisons:
    """M comparisons with their calibrations."""

    prompts: Prompts
    candidate: ArmSums
    stock: ArmSums
    calibration: ArmSums
    recomposed: ArmSums


def draw(cell: Cell, statistics: StockStatistics, number: int, generator: np.random.Generator) -> Comparisons:
    """M = ``number`` comparisons of one cell."""
    lossless = _Source(cell=cell, statistics=statistics, generator=generator)
    prompts = lossless.prompts(number, cell.budget.num_requests)
    calibrating = lossless.prompts(number, cell.budget.num_calibration)
    return Comparisons(
        prompts=prompts,
        candidate=lossless.arm(prompts, has_excess=True),
        stock=lossless.arm(prompts, has_excess=False),
        calibration=lossless.arm(calibrating, has_excess=False),
        recomposed=lossless.arm(calibrating, has_excess=False),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Marks:
    """Mismatches one by one: the flat index of their request, and their position."""

    owner: IntArray
    position: IntArray


@dataclass(frozen=True, slots=True, kw_only=True)
class _Source:
    """Draws from one cell."""

    cell: Cell
    statistics: StockStatistics
    generator: np.random.Generator

    def prompts(self, number: int, num_requests: int) -> Prompts:
        """Prompts set by set, in equal parts, each with rates of its own."""
        known, sets = self.statistics, len(self.statistics.sets)
        rows_of_set = [np.flatnonzero(known.prompt_set == index) for index in range(sets)]
        size = (number, num_requests)
        row = np.empty(size, dtype=np.int64)
        for index in range(num_requests):
            row[:, index] = self.generator.choice(rows_of_set[index % sets], size=number)
        return Prompts(
            row=row,
            mismatch_rate=_beta(self.generator, self.cell.rate, self.cell.rho, size),
            tie_rate=_beta(self.generator, known.tie_rate, known.tie_rho, size),
        )

    def arm(self, prompts: Prompts, *, has_excess: bool) -> ArmSums:
        """One arm's sums. Lengths are those of other prompts of the same set, as replies that diverge have."""
        tokens = self._lengths(prompts)
        marks = [self._marks(self.generator.binomial(tokens, prompts.mismatch_rate), np.zeros_like(tokens), tokens)]
        if has_excess and self.cell.excess:
            marks.append(self._excess(tokens))
        owner = np.concatenate([part.owner for part in marks])
        position = np.concatenate([part.position for part in marks])
        return self._sums(
            tokens, _Marks(owner=owner, position=position), self.generator.binomial(tokens, prompts.tie_rate)
        )

    def _lengths(self, prompts: Prompts) -> IntArray:
        known = self.statistics
        possible = reply_lengths(known, self.cell.budget.max_tokens)
        lengths = np.empty(prompts.row.shape, dtype=np.int64)
        own_set = known.prompt_set[prompts.row]
        for index in range(len(known.sets)):
            inside = own_set == index
            lengths[inside] = self.generator.choice(possible[known.prompt_set == index], size=int(inside.sum()))
        return lengths

    def _excess(self, tokens: IntArray) -> _Marks:
        excess, first = self.cell.excess, np.zeros_like(tokens)
        if self.cell.shape == "bursty":
            hit = self.generator.random(tokens.shape) < BURSTY_SHARE
            return self._marks(self.generator.binomial(tokens * hit, excess / BURSTY_SHARE), first, tokens)
        if self.cell.shape == "late":
            first = np.full_like(tokens, self.cell.budget.max_tokens // 2)
            late = np.maximum(tokens - first, 0)
            share = excess / self._late_share()
            return self._marks(self.generator.binomial(late, share), first, np.maximum(late, 1))
        return self._marks(self.generator.binomial(tokens, excess), first, tokens)

    def _late_share(self) -> float:
        """Of tokens, in the population of replies: it makes the excess over all tokens what the cell says."""
        known, limit = self.statistics, self.cell.budget.max_tokens
        possible = reply_lengths(known, limit)
        means = np.zeros(2)
        for index in range(len(known.sets)):
            lengths = possible[known.prompt_set == index]
            means += [lengths.mean(), np.maximum(lengths - limit // 2, 0).mean()]
        return float(means[1] / means[0])

    def _marks(self, number: IntArray, first: IntArray, span: IntArray) -> _Marks:
        """``number`` mismatches per request, at positions first .. first + span - 1."""
        owner = np.repeat(np.arange(number.size), number.reshape(-1))
        inside = self.generator.random(len(owner)) * span.reshape(-1)[owner]
        return _Marks(owner=owner, position=first.reshape(-1)[owner] + inside.astype(np.int64))

    def _sums(self, tokens: IntArray, marks: _Marks, num_ties: IntArray) -> ArmSums:
        known, shape = self.statistics, tokens.shape
        size = tokens.size
        drawn = self.generator.integers(0, len(known.mismatch_delta), size=len(marks.owner))
        tied = np.repeat(np.arange(size), num_ties.reshape(-1))
        tie = self.generator.integers(0, len(known.tie_gap), size=len(tied))
        gap, is_lower = known.tie_gap[tie].astype(np.float64), known.tie_is_lower[tie]
        tie_bin = _tie_bins(known)[tie]
        bucket = np.searchsorted(POSITION_EDGES, marks.position, side="right")
        mismatches = _count(marks.owner, size)
        lower = _count(tied[is_lower] * NUM_BINS + tie_bin[is_lower], size * NUM_BINS)
        at_end = marks.position == tokens.reshape(-1)[marks.owner] - 1
        lower_gap = _total(tied, gap * is_lower, size)
        clipped = _total(marks.owner, known.mismatch_delta[drawn].astype(np.float64), size)
        return ArmSums(
            tokens=tokens.astype(np.float64),
            mismatches=mismatches.reshape(shape),
            gaps=(clipped + lower_gap).reshape(shape),
            hits=(mismatches + lower.reshape(size, NUM_BINS).sum(axis=1)).reshape(shape),
            flip_costs=_total(tied, gap * ~is_lower, size).reshape(shape),
            ties=_count(tied * NUM_BINS + tie_bin, size * NUM_BINS).reshape(*shape, NUM_BINS),
            lower=lower.reshape(*shape, NUM_BINS),
            mismatches_at=_count(marks.owner * NUM_POSITIONS + bucket, size * NUM_POSITIONS).reshape(*shape, -1),
            finish_mismatches=_count(marks.owner[at_end], size).reshape(shape),
        )


def _count(index: IntArray, size: int) -> FloatArray:
    return np.bincount(index, minlength=size).astype(np.float64)


def _total(index: IntArray, values: FloatArray, size: int) -> FloatArray:
    return np.asarray(np.bincount(index, weights=values, minlength=size), dtype=np.float64)


def _tie_bins(statistics: StockStatistics) -> IntArray:
    part = statistics.tie_gap.astype(np.float64) / np.maximum(statistics.tie_delta, 1e-300) * NUM_BINS
    return np.minimum(part.astype(np.int64), NUM_BINS - 1)


def _beta(generator: np.random.Generator, mean: float, rho: float, size: tuple[int, int]) -> FloatArray:
    if rho <= 0:
        return np.full(size, mean)
    strength = (1 - rho) / rho
    return generator.beta(mean * strength, (1 - mean) * strength, size=size)


def tokens_at(tokens: FloatArray) -> FloatArray:
    """[M, K, NUM_POSITIONS] tokens in each bucket of output positions."""
    edges = np.concatenate([[0], POSITION_EDGES])
    widths = np.concatenate([np.diff(edges), [np.inf]])
    return np.asarray(np.clip(tokens[..., None] - edges, 0, widths), dtype=np.float64)


def shares_prompt_set(prompts: Prompts, statistics: StockStatistics, index: int) -> BoolArray:
    """[M, K] whether the prompt is of the set of that index."""
    return np.asarray(statistics.prompt_set[prompts.row] == index)
