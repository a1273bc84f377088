"""Statistics of a real stock: what the simulated comparisons are made of. Measured by ``measure``, kept in fixtures."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors.numpy import load_file, save

from lossguard.errors import IntegrityError

DEFAULT_NAME = "smollm2-135m-bf16"
_COLUMNS: dict[str, type[np.generic]] = {
    "mismatch_gap": np.float32,
    "mismatch_delta": np.float32,
    "tie_gap": np.float32,
    "tie_delta": np.float32,
    "tie_is_lower": np.bool_,
    "prompt_set": np.int32,
    "prompt_length": np.int32,
    "reply_length": np.int32,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class StockStatistics:
    """A stock's mismatches, ties and lengths. Gaps and deltas are nats; lengths tokens; rates shares of tokens.

    A prompt is one index of the last three columns; ``reply_length`` is cut at ``longest_reply`` tokens.
    """

    name: str
    rate: float  # mismatches
    rho: float  # intraclass correlation of mismatches within a prompt
    tie_rate: float  # positions whose two best tokens lie within delta
    tie_rho: float
    longest_reply: int
    num_tokens: int
    num_events: int
    sets: tuple[str, ...]
    sources: tuple[Mapping[str, Any], ...]  # runs it was measured on
    mismatch_gap: NDArray[np.float32]
    mismatch_delta: NDArray[np.float32]
    tie_gap: NDArray[np.float32]  # between the two best tokens
    tie_delta: NDArray[np.float32]
    tie_is_lower: NDArray[np.bool_]  # stock served the lower-ranked one
    prompt_set: NDArray[np.int32]
    prompt_length: NDArray[np.int32]
    reply_length: NDArray[np.int32]

    def head(self) -> dict[str, Any]:
        """Everything but the columns, as JSON."""
        return {
            "name": self.name,
            "rate": self.rate,
            "rho": self.rho,
            "tie_rate": self.tie_rate,
            "tie_rho": self.tie_rho,
            "longest_reply": self.longest_reply,
            "num_tokens": self.num_tokens,
            "num_events": self.num_events,
            "sets": list(self.sets),
            "sources": [dict(source) for source in self.sources],
        }


def save_statistics(folder: Path, statistics: StockStatistics) -> tuple[Path, Path]:
    """Write NAME.json and NAME.safetensors."""
    folder.mkdir(parents=True, exist_ok=True)
    paths = folder / f"{statistics.name}.json", folder / f"{statistics.name}.safetensors"
    paths[0].write_text(json.dumps(statistics.head(), indent=2) + "\n", encoding="utf-8")
    columns: dict[str, np.ndarray] = {
        name: np.ascontiguousarray(getattr(statistics, name), dtype=kind) for name, kind in _COLUMNS.items()
    }
    paths[1].write_bytes(save(columns))
    return paths


def load_statistics(name: str = DEFAULT_NAME, folder: Path | None = None) -> StockStatistics:
    """Read recorded statistics. Raises IntegrityError LG0903 if they are not there or not whole."""
    place = folder or statistics_folder()
    try:
        head = json.loads((place / f"{name}.json").read_text(encoding="utf-8"))
        columns: dict[str, Any] = load_file(place / f"{name}.safetensors")
        values: dict[str, Any] = {**head, "sets": tuple(head["sets"]), "sources": tuple(head["sources"])}
        return StockStatistics(**values, **{key: columns[key] for key in _COLUMNS})
    except (OSError, KeyError, TypeError, ValueError) as error:
        raise IntegrityError(
            f"the stock statistics {name!r} cannot be read from {place}: {error}",
            why="simulated error rates are those of a stock that was measured, not of an invented one",
            fix="install lossguard whole, or run from its repository",
            code="LG0903",
        ) from error


def reply_lengths(statistics: StockStatistics, max_tokens: int) -> NDArray[np.int64]:
    """[P] length of each prompt's reply if it may have ``max_tokens``.

    Where replies were cut before, those that were still running end at their set's rate of ending so far: their
    lengths are quantiles of that exponential, in the order of the prompts.
    """
    known = statistics.reply_length.astype(np.int64)
    if max_tokens <= statistics.longest_reply:
        return np.minimum(known, max_tokens)
    lengths = known.astype(np.float64)
    for index in range(len(statistics.sets)):
        inside = statistics.prompt_set == index
        running = np.flatnonzero(inside & (known >= statistics.longest_reply))
        num_ended = int(inside.sum()) - len(running)
        mean_rest = float(known[inside].sum()) / (num_ended + 0.5)
        quantiles = (np.arange(len(running)) + 0.5) / max(len(running), 1)
        lengths[running] += -mean_rest * np.log(quantiles)
    return np.minimum(lengths, max_tokens).astype(np.int64)


def statistics_folder() -> Path:
    """Where the statistics are: beside this module in an installed package, in ``fixtures/`` in a source tree."""
    installed = Path(__file__).parent / "stock-statistics"
    return installed if installed.is_dir() else Path(__file__).parents[2] / "fixtures" / "stock-statistics"
