"""The factories behind ``[scorer] engine = "sglang"`` and ``"vllm"``."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lossguard.scoring.base import ScorerCapabilities
from lossguard.scoring.servers.dialects import ScoringDialect, SglangScoring, VllmScoring
from lossguard.scoring.servers.options import read_scorer_options
from lossguard.scoring.servers.scorer import ServerScorer, capabilities


@dataclass(frozen=True, slots=True)
class ServerScorerFactory:
    """See ``lossguard.scoring.base.PlacedFactory``. Called, it launches or attaches, and waits until all is well."""

    dialect: ScoringDialect
    folder: Path | None = None

    @property
    def capabilities(self) -> ScorerCapabilities:
        """Of every scorer that it makes, whatever its options say."""
        return capabilities(self.dialect, top_k=None)

    def check(self, model_path: str, options: Mapping[str, Any]) -> None:
        """Raise UsageError LG0513 or LG0206 for options that do not fit."""
        read_scorer_options(model_path, options)

    def in_folder(self, folder: Path) -> ServerScorerFactory:
        """The same, with the server's log in ``folder``."""
        return replace(self, folder=folder)

    def __call__(self, model_path: str, options: Mapping[str, Any]) -> ServerScorer:
        """A scorer that is ready. Raises UsageError, EngineError of its server, ScorerError LG0515."""
        return ServerScorer(self.dialect, read_scorer_options(model_path, options), self.folder)


sglang_scorer = ServerScorerFactory(SglangScoring())
vllm_scorer = ServerScorerFactory(VllmScoring())
