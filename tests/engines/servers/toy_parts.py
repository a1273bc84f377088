"""Parts of the toy stack under names that a configuration file can give."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.gate.toy import ToyScorer, ToyTarget


def toy_scorer(_model_path: str, _options: Mapping[str, Any]) -> ToyScorer:
    """Exact scores of the toy target."""
    return ToyScorer(ToyTarget())
