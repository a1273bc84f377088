"""A stock with round numbers, so that sums can be taken apart into tokens again."""

from __future__ import annotations

import numpy as np
import pytest

from lossguard.checks.symmetry import NUM_BINS
from lossguard.selftest.statistics import StockStatistics

DELTA = 0.0625
TIE_GAPS = (np.arange(NUM_BINS) + 0.5) / NUM_BINS * DELTA  # one value per bin


def round_statistics() -> StockStatistics:
    """Three sets of 40 prompts; replies of 20 to 64 tokens; 30 % of the ties go to the lower-ranked token."""
    rng = np.random.default_rng(1)
    gaps = np.tile(TIE_GAPS, 10).astype(np.float32)
    return StockStatistics(
        name="round",
        rate=0.003,
        rho=0.002,
        tie_rate=0.05,
        tie_rho=0.004,
        longest_reply=64,
        num_tokens=100_000,
        num_events=0,
        sets=("chat", "code", "math"),
        sources=(),
        mismatch_gap=(DELTA + rng.exponential(0.06, size=200)).astype(np.float32),
        mismatch_delta=np.full(200, DELTA, dtype=np.float32),
        tie_gap=gaps,
        tie_delta=np.full(len(gaps), DELTA, dtype=np.float32),
        tie_is_lower=np.arange(len(gaps)) % 10 < 3,
        prompt_set=np.repeat(np.arange(3), 40).astype(np.int32),
        prompt_length=rng.integers(10, 700, size=120).astype(np.int32),
        reply_length=np.minimum(rng.integers(20, 120, size=120), 64).astype(np.int32),
    )


@pytest.fixture(scope="session")
def statistics() -> StockStatistics:
    """The shared stock."""
    return round_statistics()
