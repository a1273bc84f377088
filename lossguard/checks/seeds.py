"""Independent random streams of one run's seed, so that no check's draws depend on which others ran."""

from __future__ import annotations

import zlib

import numpy as np


def stream_seed(seed: int, name: str) -> int:
    """A seed for the named use, the same in every process and on every machine."""
    words = np.random.SeedSequence([abs(seed), zlib.crc32(name.encode())]).generate_state(2)
    return int(words[0]) << 32 | int(words[1])
