"""What a server makes of penalties and biases, in numpy and apart from the scorer's way; faults may act in part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

NAMES = ("repetition_penalty", "presence_penalty", "frequency_penalty")


def parameters_of(body: Mapping[str, Any]) -> dict[str, Any]:
    """From the body of a request to vLLM."""
    found = {name: float(body[name]) for name in NAMES if name in body}
    bias = body.get("logit_bias") or {}
    return {**found, "logit_bias": {int(token): float(value) for token, value in bias.items()}}


def honour(
    logits: NDArray[np.float64], parameters: Mapping[str, Any], prompt: Sequence[int], reply: Sequence[int]
) -> NDArray[np.float64]:
    """Logits as vLLM changes them before it chooses; ``count_every`` and ``mask_skips`` leave out a part."""
    changed = np.array(logits, dtype=np.float64)
    skips, every = parameters.get("mask_skips", 0), parameters.get("count_every", 1)
    if not skips or len(reply) % skips != skips - 1:
        for token, bias in parameters.get("logit_bias", {}).items():
            changed[token] += bias
    counted = [token for at, token in enumerate(reply) if at % every == every - 1]
    repetition = parameters.get("repetition_penalty", 1.0)
    for token in {*prompt, *counted}:
        changed[token] = changed[token] / repetition if changed[token] > 0 else changed[token] * repetition
    for token in set(counted):
        changed[token] -= parameters.get("presence_penalty", 0.0)
        changed[token] -= parameters.get("frequency_penalty", 0.0) * counted.count(token)
    return changed
