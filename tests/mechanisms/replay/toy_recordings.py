"""Small recordings with random numbers, and replies in which the candidates are often right."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from lossguard_mechanisms.replay.recording import Lattices, Provenance, Recording, Replies

VOCABULARY = 40


def provenance(*, drafter: str = "toy", vocab_size: int = VOCABULARY, temperature: float = 0.0) -> Provenance:
    """Of a recording that nothing was recorded for."""
    return Provenance(
        target="toy-target",
        target_sha256="ab" * 32,
        drafter=drafter,
        drafter_sha256="cd" * 32,
        vocab_size=vocab_size,
        compute_dtype="float32",
        temperature=temperature,
        seed=3,
        prompts="toy",
    )


def replies(lengths: Sequence[int], *, seed: int = 0, sets: Sequence[str] | None = None) -> Replies:
    """Random prompts and replies of these lengths."""
    generator = np.random.default_rng(seed)
    prompts = [2 + index % 3 for index in range(len(lengths))]
    return Replies(
        request_ids=tuple(f"toy-{index:03d}" for index in range(len(lengths))),
        sets=tuple(sets or ["toy"] * len(lengths)),
        clusters=tuple(f"toy-{index:03d}" for index in range(len(lengths))),
        prompt_ids=generator.integers(0, VOCABULARY, sum(prompts)),
        prompt_offsets=np.concatenate([[0], np.cumsum(prompts)]),
        reply_ids=generator.integers(0, VOCABULARY, sum(lengths)),
        reply_offsets=np.concatenate([[0], np.cumsum(lengths)]),
    )


def lattices(
    future: np.ndarray, *, num_candidates: int, seed: int = 0, has_edges: bool = True, hit_rate: float = 0.8
) -> Lattices:
    """Candidates for the positions of ``future`` [N, D], which hold the true token with ``hit_rate``, mostly early."""
    generator = np.random.default_rng(seed)
    positions, depths = future.shape
    keys = generator.random((positions, depths, VOCABULARY))
    true = np.where(future < 0, 0, future)[:, :, None]
    lift = np.where(generator.random((positions, depths, 1)) < hit_rate, -generator.random((positions, depths, 1)), 2.0)
    np.put_along_axis(keys, true, 0.2 * lift, axis=2)
    ids = np.argsort(keys, axis=2)[:, :, :num_candidates].astype(np.int32)
    log_probs = _log_softmax(generator.normal(0, 2, (positions, depths, num_candidates + 1)))[:, :, :num_candidates]
    edges = _log_softmax(generator.normal(0, 2, (positions, depths, num_candidates, num_candidates)))
    return Lattices(
        ids=ids,
        log_probs=-np.sort(-log_probs, axis=2).astype(np.float16),
        chain=ids[:, :, 0].copy(),
        anchor_edges=edges[:, 0, 0].astype(np.float16) if has_edges else None,
        edges=edges[:, 1:].astype(np.float16) if has_edges else None,
        confidence=generator.random((positions, depths)).astype(np.float16) if has_edges else None,
    )


def recording(
    lengths: Sequence[int] = (9, 1, 14, 5),
    *,
    num_depths: int = 4,
    num_candidates: int = 5,
    seed: int = 0,
    has_edges: bool = True,
    sets: Sequence[str] | None = None,
) -> Recording:
    """A sound recording."""
    said = replies(lengths, seed=seed, sets=sets)
    found = lattices(said.future(num_depths), num_candidates=num_candidates, seed=seed, has_edges=has_edges)
    return Recording(provenance=provenance(), replies=said, lattices=found)


def _log_softmax(logits: np.ndarray) -> np.ndarray:
    shifted = logits - logits.max(axis=-1, keepdims=True)
    return np.asarray(shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True)))
