"""Patterns of identity: which ids are served, and in place of which."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import BoolArray, CheckInput, IntArray
from lossguard.checks.clusters import position_of_tokens, request_of_tokens
from lossguard.diagnosis.families import Family
from lossguard.diagnosis.patterns import MINIMUM_COVERAGE, Pattern
from lossguard.diagnosis.suspects import MINIMUM_NUMBER, Suspects

_MODULI = range(2, 65)
_NUM_SHARDS = (2, 4, 8)
_MOST_INSIDE = 0.2
_MOST_REFERENCES = 50_000


@dataclass(frozen=True, slots=True, kw_only=True)
class IdPattern:
    """A pattern of ids; ``is_single`` if it is one id alone, which broken state serves as well as a bias does."""

    pattern: Pattern
    is_single: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class _IdSet:
    """Ids of a range, or those of one residue, or both; ``num_tried`` sets of its sort were looked at."""

    text: str
    num_tried: int
    low: int = 0
    high: int
    modulus: int = 1
    residue: int = 0

    def holds(self, ids: IntArray) -> BoolArray:
        """[N] which ids are members."""
        return np.asarray((ids >= self.low) & (ids < self.high) & (ids % self.modulus == self.residue))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Pairs:
    """Distinct (request, served id, best id) among the errors, so that a loop counts once.

    ``alternatives`` are the two best ids of the candidate's tokens: what any path may serve.
    """

    kind: str
    served: IntArray
    best: IntArray
    alternatives: tuple[IntArray, IntArray]
    background: float  # of as many pairs as there are, how many stock would have too
    vocab_size: int

    @property
    def excess(self) -> float:
        """Pairs beyond stock's."""
        return len(self.served) - self.background


def id_patterns(given: CheckInput, suspects: Suspects) -> list[IdPattern]:
    """Ends of replies, and the best set of ids of each sort that a bias may favour.

    One id alone has a residue and a shard too: where it holds the errors, they say nothing more.
    """
    pairs, found = _pairs(given, suspects), [IdPattern(pattern=_ends(given, suspects))]
    if pairs.excess < MINIMUM_NUMBER:
        return found
    single = IdPattern(pattern=_measure(pairs, _single_id(pairs)), is_single=True)
    if single.pattern.coverage >= MINIMUM_COVERAGE:
        return [*found, single]
    sets = [ids for ids in (*_residues(pairs), *_shards(pairs)) if _replaces_others(pairs, ids)]
    return [*found, *(IdPattern(pattern=_measure(pairs, ids)) for ids in sets)]


def _pairs(given: CheckInput, suspects: Suspects) -> _Pairs:
    scores = given.candidate.scores
    chosen = suspects.tokens & (scores.served_id >= 0) & (scores.served_id < given.vocab_size)
    rows = np.stack([request_of_tokens(scores)[chosen], scores.served_id[chosen], scores.best_id[chosen]])
    distinct = np.unique(rows.astype(np.int64), axis=1)
    share = 1.0 - suspects.num_excess / max(int(suspects.tokens.sum()), 1)
    step = max(1, scores.num_tokens // _MOST_REFERENCES)
    return _Pairs(
        kind=suspects.kind.value,
        served=distinct[1],
        best=distinct[2],
        alternatives=(
            scores.top_ids[::step, 0].astype(np.int64),
            scores.top_ids[::step, 1].astype(np.int64),
        ),
        background=max(share, 0.0) * distinct.shape[1],
        vocab_size=given.vocab_size,
    )


def _ends(given: CheckInput, suspects: Suspects) -> Pattern:
    """Errors that serve a stop id, that should have served one, or that follow one."""
    is_end, total = _end_tokens(given), len(suspects.tokens)
    bad, inside = int(suspects.tokens.sum()), int(suspects.tokens[is_end].sum())
    return Pattern(
        family=Family.EOS,
        sentence=(
            f"{inside:,} of {bad:,} {suspects.kind.value} serve a stop id, stand where one is due, or follow one "
            f"({_possible_ends(given).mean():.2%} of tokens are such places)"
        ),
        coverage=float(np.clip(suspects.excess[is_end].sum() / suspects.num_excess, 0.0, 1.0)),
        exposure=min(max(float(_possible_ends(given).mean()), 1.0 / total), 1.0),
        effective=suspects.effective,
        num_tried=3,
    )


def _stop_ids(given: CheckInput) -> IntArray:
    return np.array(sorted({stop for request in given.requests for stop in request.sampling.stop_ids}), dtype=np.int64)


def _end_tokens(given: CheckInput) -> BoolArray:
    scores, stops = given.candidate.scores, _stop_ids(given)
    serves = np.isin(scores.served_id, stops)
    positions, owner = position_of_tokens(scores), request_of_tokens(scores)
    first = np.full(len(scores.offsets) - 1, np.iinfo(np.int64).max, dtype=np.int64)
    np.minimum.at(first, owner[serves], positions[serves])
    return np.asarray(serves | np.isin(scores.best_id, stops) | (positions > first[owner]))


def _possible_ends(given: CheckInput) -> BoolArray:
    """Where an error made without regard to ends would look like one: a stop id is among the two best."""
    return np.asarray(np.isin(given.candidate.scores.top_ids[:, :2], _stop_ids(given)).any(axis=1))


def _residues(pairs: _Pairs) -> Iterator[_IdSet]:
    for modulus in _MODULI:
        residue = int(np.bincount(pairs.served % modulus, minlength=modulus).argmax())
        yield _IdSet(
            text=f"divisible by {modulus}" if residue == 0 else f"equal to {residue} modulo {modulus}",
            num_tried=sum(_MODULI),
            high=pairs.vocab_size,
            modulus=modulus,
            residue=residue,
        )


def _shards(pairs: _Pairs) -> Iterator[_IdSet]:
    """Equal parts of the vocabulary, as tensor-parallel heads hold them."""
    for number in _NUM_SHARDS:
        size = -(-pairs.vocab_size // number)
        low = int(np.bincount(pairs.served // size, minlength=number).argmax()) * size
        high = min(low + size, pairs.vocab_size)
        yield _IdSet(text=f"from {low:,} to {high - 1:,}", num_tried=sum(_NUM_SHARDS), low=low, high=high)


def _single_id(pairs: _Pairs) -> _IdSet:
    one = int(np.bincount(pairs.served).argmax())
    return _IdSet(text=f"equal to {one}", num_tried=pairs.vocab_size, low=one, high=one + 1)


def _replaces_others(pairs: _Pairs, ids: _IdSet) -> bool:
    """An offset on a set of ids shows only where the best id is no member."""
    best = pairs.best[ids.holds(pairs.served)]
    return bool(len(best)) and float(ids.holds(best).mean()) <= _MOST_INSIDE


def _measure(pairs: _Pairs, ids: _IdSet) -> Pattern:
    """Coverage against the largest share that the set has of the vocabulary, the best or the second ids."""
    inside, number = int(ids.holds(pairs.served).sum()), len(pairs.served)
    shares = [float(ids.holds(column).mean()) for column in pairs.alternatives]
    members = int(ids.holds(np.arange(pairs.vocab_size)).sum())
    exposure = max(members / pairs.vocab_size, 1 / len(pairs.alternatives[0]), *shares)
    coverage = (inside - exposure * pairs.background) / pairs.excess
    return Pattern(
        family=Family.BIAS,
        sentence=(
            f"{inside:,} of {number:,} served ids of {pairs.kind} are {ids.text} ({exposure * number:,.1f} by chance)"
        ),
        coverage=float(np.clip(coverage, 0.0, 1.0)),
        exposure=exposure,
        effective=pairs.excess**2 / (number + pairs.background),
        num_tried=ids.num_tried,
    )
