"""Sequences of different lengths in batches of bounded size."""

from __future__ import annotations

from collections.abc import Iterator, Sequence


def batches_by_length(lengths: Sequence[int], rows_at_once: int) -> Iterator[list[int]]:
    """Indices of sequences, similar lengths together, longest first.

    A batch padded to its longest sequence has at most ``rows_at_once`` rows; a sequence longer than that is alone.
    """
    batch: list[int] = []
    for index in sorted(range(len(lengths)), key=lambda index: -lengths[index]):
        if batch and (len(batch) + 1) * lengths[batch[0]] > rows_at_once:
            yield batch
            batch = []
        batch.append(index)
    if batch:
        yield batch
