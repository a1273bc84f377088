"""Patterns of place: positions, lengths, and what telemetry names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from lossguard.checks.base import BoolArray, CheckInput, FloatArray
from lossguard.checks.bucket_masks import telemetry_column
from lossguard.checks.clusters import position_of_tokens, request_of_tokens
from lossguard.diagnosis.families import Family
from lossguard.diagnosis.patterns import Pattern
from lossguard.diagnosis.rejections import tokens_since_rejection
from lossguard.diagnosis.suspects import Suspects

_MOST_EDGES = 64
_INTERVAL_EDGES = 12
_SHARE_BEYOND = 0.25
_FIRST_TOKENS = 8
"""A reply's first tokens come from the prompt's pass, or lie before the first draft: errors that begin within them are
those of decoding as such, not of a length."""
_FLAGS = (("preempted", "after a preemption"), ("cached", "at cached prefixes"))


@dataclass(frozen=True, slots=True, kw_only=True)
class _Part:
    """A part of the candidate's tokens; ``inside`` and ``outside`` name it and the rest."""

    family: Family
    text: str
    mask: BoolArray  # [T]
    inside: str = "there"
    outside: str = "elsewhere"


def place_patterns(given: CheckInput, suspects: Suspects) -> list[Pattern]:
    """The best part of each sort: thresholds of every coordinate, and sorts that no family is named for."""
    sorts = [*_thresholds(given, suspects), _intervals(given, suspects), _prompt_sets(given), *_flags(given)]
    return [pattern for parts in sorts if (pattern := _best_of(parts, suspects)) is not None]


def _best_of(parts: Sequence[_Part], suspects: Suspects) -> Pattern | None:
    parts = [part for part in parts if part.mask.any() and not part.mask.all()]
    patterns = [_measure(part, suspects, len(parts)) for part in parts]
    return max(patterns, key=lambda pattern: pattern.score_nats, default=None)


def _measure(part: _Part, suspects: Suspects, num_tried: int) -> Pattern:
    bad, inside = int(suspects.tokens.sum()), int(suspects.tokens[part.mask].sum())
    num_inside = int(part.mask.sum())
    share = f"all {bad:,}" if inside == bad else f"{inside:,} of {bad:,}"
    return Pattern(
        family=part.family,
        sentence=(
            f"{share} {suspects.kind.value} lie {part.text} "
            f"({bad - inside:,} of {len(part.mask) - num_inside:,} tokens {part.outside}, "
            f"{inside:,} of {num_inside:,} {part.inside})"
        ),
        coverage=float(np.clip(suspects.excess[part.mask].sum() / suspects.num_excess, 0.0, 1.0)),
        exposure=float(np.clip(suspects.exposure[part.mask].sum(), 0.0, 1.0)),
        effective=suspects.effective,
        num_tried=num_tried,
    )


def _thresholds(given: CheckInput, suspects: Suspects) -> Iterator[list[_Part]]:
    arm = given.candidate
    positions = position_of_tokens(arm.scores).astype(np.float64)
    lengths = np.array([len(request.prompt_ids) for request in given.requests], dtype=np.float64)
    prompts = lengths[request_of_tokens(arm.scores)]
    sort = Family.POSITION_THRESHOLD
    for values, text, least in (
        (positions, "after position {:,}", _FIRST_TOKENS),
        (positions + prompts, "after {:,} tokens of context", 0),
        (prompts, "in replies to prompts of over {:,} tokens", 0),
    ):
        yield [
            _Part(
                family=sort if edge >= least else Family.UNKNOWN,
                text=text.format(edge - 1),
                mask=values >= edge,
                inside="after",
                outside="before",
            )
            for edge in _edges(values, suspects)
        ]
    if (batch := telemetry_column(arm, given.requests, "batch")) is not None:
        above = [(f"in batches of {edge:,} or more", batch >= edge) for edge in _edges(batch, suspects)]
        below = [(f"in batches of {edge:,} or fewer", batch <= edge) for edge in _edges(batch, suspects)]
        yield [_Part(family=Family.BATCH, text=text, mask=mask) for text, mask in (*above, *below)]
    if (since := tokens_since_rejection(arm, given.requests)) is not None:
        sort = Family.STATE_AFTER_REJECTION
        near = [(f"within {edge + 1:,} tokens of a rejected draft", since <= edge) for edge in _edges(since, suspects)]
        yield [_Part(family=sort, text=text, mask=mask) for text, mask in near]


def _edges(values: FloatArray, suspects: Suspects) -> list[int]:
    """Values at which an error lies, thinned to quantiles where there are many."""
    bad = values[suspects.tokens]
    distinct = np.unique(bad[np.isfinite(bad)])
    if len(distinct) > _MOST_EDGES:
        distinct = np.unique(np.quantile(bad[np.isfinite(bad)], np.linspace(0, 1, _MOST_EDGES), method="nearest"))
    return [int(edge) for edge in distinct]


def _intervals(given: CheckInput, suspects: Suspects) -> list[_Part]:
    """Ranges of positions that end well before the replies do: no threshold, so no family."""
    positions = position_of_tokens(given.candidate.scores)
    edges = _edges(positions.astype(np.float64), suspects)
    edges = sorted({*edges[:: max(1, len(edges) // _INTERVAL_EDGES)], *edges[-1:]})
    parts = []
    for at, low in enumerate(edges):
        for high in edges[at:]:
            mask = (positions >= low) & (positions <= high)
            if suspects.exposure[positions > high].sum() >= _SHARE_BEYOND * suspects.exposure[mask].sum():
                parts.append(_Part(family=Family.UNKNOWN, text=f"at positions {low:,} to {high:,}", mask=mask))
    return parts


def _prompt_sets(given: CheckInput) -> list[_Part]:
    names = np.array([request.set for request in given.requests])
    owner = request_of_tokens(given.candidate.scores)
    return [
        _Part(family=Family.UNKNOWN, text=f"in prompt set {name}", mask=(names == name)[owner])
        for name in sorted(set(names.tolist()))
    ]


def _flags(given: CheckInput) -> Iterator[list[_Part]]:
    for column, text in _FLAGS:
        if (values := telemetry_column(given.candidate, given.requests, column)) is not None:
            yield [_Part(family=Family.UNKNOWN, text=text, mask=values > 0)]
