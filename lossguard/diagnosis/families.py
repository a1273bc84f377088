"""The families of faults that a pattern can point to."""

from __future__ import annotations

from enum import StrEnum


class Family(StrEnum):
    """What kind of mistake leaves a pattern; ``UNKNOWN`` where no pattern, or more than one, fits."""

    STATE_AFTER_REJECTION = "state after rejection"
    POSITION_THRESHOLD = "position threshold"
    BATCH = "batch"
    EOS = "EOS"
    BIAS = "bias"
    NEAR_TIE = "near-tie"
    UNKNOWN = "unknown"


CAUSES = {
    Family.STATE_AFTER_REJECTION: "rejected drafts left in the cache or the recurrent state, or positions after them",
    Family.POSITION_THRESHOLD: "long-context state, rotary cache, or an injected bias",
    Family.BATCH: "rows that mix, padding, or a kernel chosen by batch size",
    Family.EOS: "stop handling, a bias on the stop id, or a lost tail",
    Family.BIAS: "an offset on some ids: logit bias, a penalty, or a shard of the head",
    Family.NEAR_TIE: "the rule that breaks ties, or arithmetic coarser than stock's",
    Family.UNKNOWN: "",
}
"""What to look at first, for people."""
