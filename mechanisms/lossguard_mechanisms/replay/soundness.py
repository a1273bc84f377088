"""Whether the arrays of a recording fit each other: asked before one is written and after one is read."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from lossguard_mechanisms.replay.recording import Lattices, Recording


def problems_of(recording: Recording) -> list[str]:
    """Everything in which the arrays contradict each other; empty for a sound recording."""
    shapes = list(_shape_problems(recording))
    return shapes or list(_value_problems(recording))


def _shape_problems(recording: Recording) -> Iterator[str]:
    replies, lattices = recording.replies, recording.lattices
    num_requests = replies.num_requests
    if not num_requests:
        yield "no request"
    if {len(replies.sets), len(replies.clusters)} != {num_requests}:
        yield f"{len(replies.sets)} sets and {len(replies.clusters)} clusters of {num_requests} requests"
    for name, ids, offsets in (
        ("prompt", replies.prompt_ids, replies.prompt_offsets),
        ("reply", replies.reply_ids, replies.reply_offsets),
    ):
        if offsets.shape != (num_requests + 1,) or offsets[0] != 0 or np.any(np.diff(offsets) < 1):
            yield f"{name} offsets do not cut out {num_requests} parts"
        elif offsets[-1] != len(ids):
            yield f"{name} offsets end at {offsets[-1]} of {len(ids)} tokens"
    yield from _lattice_shape_problems(lattices, len(replies.reply_ids))


def _lattice_shape_problems(lattices: Lattices, num_tokens: int) -> Iterator[str]:
    if lattices.ids.ndim != 3 or 0 in lattices.ids.shape[1:]:
        yield f"candidates have shape {lattices.ids.shape}"
        return
    positions, depths, candidates = lattices.ids.shape
    if positions != num_tokens:
        yield f"lattices at {positions} positions of {num_tokens} reply tokens"
    width = lattices.num_edge_candidates
    expected = {
        "log_probs": (positions, depths, candidates),
        "chain": (positions, depths),
        "anchor_edges": (positions, width),
        "edges": (positions, depths - 1, width, width),
        "confidence": (positions, depths),
    }
    for name, shape in expected.items():
        found = getattr(lattices, name)
        if found is not None and found.shape != shape:
            yield f"{name} have shape {found.shape}, not {shape}"
    if (lattices.anchor_edges is None) is not (lattices.edges is None) or width > candidates:
        yield "edges are there in part"


def _value_problems(recording: Recording) -> Iterator[str]:
    replies, lattices = recording.replies, recording.lattices
    size = recording.provenance.vocab_size
    for name, ids in (
        ("prompt", replies.prompt_ids),
        ("reply", replies.reply_ids),
        ("candidate", lattices.ids),
        ("chain", lattices.chain),
    ):
        if ids.size and (ids.min() < 0 or ids.max() >= size):
            yield f"{name} ids outside the vocabulary of {size}"
    if np.any(np.diff(np.sort(lattices.ids, axis=2), axis=2) == 0):
        yield "a candidate stands twice at one depth"
    if np.any(np.diff(lattices.log_probs.astype(np.float32), axis=2) > 0):
        yield "candidates are not best first"
    if lattices.confidence is not None and not np.all((lattices.confidence >= 0) & (lattices.confidence <= 1)):
        yield "confidence holds values that are no probabilities"
    for name in ("log_probs", "anchor_edges", "edges"):
        values = getattr(lattices, name)
        if values is not None and not np.all(values <= 0):  # NaN is refused too
            yield f"{name} hold values that are no log-probabilities"
