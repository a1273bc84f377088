"""Statistics of stock in finished runs: mismatch rate, rho and DEFF per prompt set, and the pools to simulate from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from lossguard.checks.base import Thresholds
from lossguard.checks.clusters import request_sums, sum_by_cluster
from lossguard.checks.delta import delta_per_token, is_event, is_mismatch, is_tie, top_two_gap
from lossguard.checks.describe import intraclass_correlation
from lossguard.checks.proportions import design_effect
from lossguard.records import ForcedScores, Request
from lossguard.run_folder import RunFolder
from lossguard.scoring.columns import concat_scores, load_scores
from lossguard.selftest.recorded import recorded_systems
from lossguard.selftest.statistics import StockStatistics


@dataclass(frozen=True, slots=True, kw_only=True)
class StockRun:
    """Stock's replies of one finished run: both calibration services and the test, each with its requests."""

    path: Path
    thresholds: Thresholds
    services: tuple[tuple[str, tuple[Request, ...], ForcedScores], ...]

    @property
    def max_tokens(self) -> int:
        """The longest reply that any request allowed."""
        return max(request.sampling.max_tokens for _, requests, _ in self.services for request in requests)


def read_stock_run(path: Path) -> StockRun:
    """Stock's part of a run folder. Raises UsageError LG0904 if it holds no scored stock."""
    folder = RunFolder.open(path)
    thresholds = Thresholds.from_json(folder.read_json("calibration.json"))
    calibration, test = folder.read_requests("calibration-requests.jsonl"), folder.read_requests("requests.jsonl")
    beside = path / recorded_systems(path)[0]
    services = (
        ("calibration", calibration, scores_of(path / "stock", "calibration-scores")),
        ("recomposed", calibration, scores_of(path / "stock", "recomposed-scores")),
        ("test", test, scores_of(beside, "stock-scores")),
    )
    return StockRun(path=path, thresholds=thresholds, services=services)


def scores_of(folder: Path, stem: str) -> ForcedScores:
    """All shards of one arm's scores."""
    return concat_scores([load_scores(path) for path in sorted(folder.glob(f"{stem}-[0-9]*.safetensors"))])


def rho_by_set(runs: Sequence[StockRun]) -> list[dict[str, Any]]:
    """One row per prompt set and one for all: tokens, mismatch rate, rho, DEFF, over the test replies of all runs."""
    requests = [request for run in runs for request in run.services[-1][1]]
    counts = [_counts(run, run.services[-1][2]) for run in runs]
    mismatches, tokens = (np.concatenate([part[index] for part in counts]) for index in (0, 1))
    prefix = [index for index, run in enumerate(runs) for _ in run.services[-1][1]]
    clusters = np.unique(
        [f"{run}/{request.cluster}" for run, request in zip(prefix, requests, strict=True)], return_inverse=True
    )[1]
    sets = np.array([request.set for request in requests])
    chosen = [(name, sets == name) for name in sorted(set(sets.tolist()))] + [("all", np.ones(len(sets), np.bool_))]
    return [_rho_row(name, mismatches[mask], tokens[mask], clusters[mask]) for name, mask in chosen]


def _rho_row(name: str, mismatches: NDArray[Any], tokens: NDArray[Any], clusters: NDArray[Any]) -> dict[str, Any]:
    own = np.unique(clusters, return_inverse=True)[1]
    sums, sizes = sum_by_cluster(mismatches, own), sum_by_cluster(tokens, own)
    return {
        "set": name,
        "num_clusters": len(sums),
        "num_tokens": int(sizes.sum()),
        "num_mismatches": int(sums.sum()),
        "rate": float(sums.sum() / sizes.sum()),
        "rho": intraclass_correlation(sums, sizes),
        "rho_standard_error": _rho_error(sums, sizes),
        "deff": float(design_effect(sums, sizes)),
        "mean_tokens": float(sizes.mean()),
    }


def _rho_error(sums: NDArray[np.float64], sizes: NDArray[np.float64]) -> float:
    """Delete-a-group jackknife over 40 groups of clusters."""
    groups = np.arange(len(sums)) % 40
    left_out = [intraclass_correlation(sums[groups != group], sizes[groups != group]) for group in range(40)]
    return float(np.sqrt(39 / 40 * np.square(np.array(left_out) - np.mean(left_out)).sum()))


def _counts(run: StockRun, scores: ForcedScores) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    wrong = is_mismatch(scores, run.thresholds)
    return request_sums(wrong, scores), np.diff(scores.offsets).astype(np.float64)


def measure(name: str, runs: Sequence[StockRun]) -> StockStatistics:
    """Statistics pooled over all services of all runs; lengths come from the runs that allow the longest replies."""
    parts: list[dict[str, Any]] = [_columns(run, scores) for run in runs for _, _, scores in run.services]
    pooled = {key: np.concatenate([part[key] for part in parts]) for key in parts[0]}
    longest = max(run.max_tokens for run in runs)
    sets = tuple(sorted({request.set for run in runs for _, requests, _ in run.services for request in requests}))
    tokens = pooled["tokens"]
    columns: dict[str, Any] = {
        **{key: pooled[key] for key in ("mismatch_gap", "mismatch_delta", "tie_gap", "tie_delta", "tie_is_lower")},
        **_prompts([run for run in runs if run.max_tokens == longest], sets),
    }
    return StockStatistics(
        name=name,
        rate=float(pooled["mismatches"].sum() / tokens.sum()),
        rho=intraclass_correlation(pooled["mismatches"], tokens),
        tie_rate=float(pooled["ties"].sum() / tokens.sum()),
        tie_rho=intraclass_correlation(pooled["ties"], tokens),
        longest_reply=longest,
        num_tokens=int(tokens.sum()),
        num_events=int(pooled["events"].sum()),
        sets=sets,
        sources=tuple(_source(run) for run in runs),
        **columns,
    )


def _columns(run: StockRun, scores: ForcedScores) -> dict[str, NDArray[Any]]:
    limits, delta = run.thresholds, delta_per_token(scores, run.thresholds)
    wrong, tie = is_mismatch(scores, limits), is_tie(scores, limits)
    return {
        "mismatches": request_sums(wrong, scores),
        "ties": request_sums(tie, scores),
        "events": request_sums(is_event(scores, limits), scores),
        "tokens": np.diff(scores.offsets).astype(np.float64),
        "mismatch_gap": scores.gap[wrong],
        "mismatch_delta": delta[wrong].astype(np.float32),
        "tie_gap": top_two_gap(scores)[tie].astype(np.float32),
        "tie_delta": delta[tie].astype(np.float32),
        "tie_is_lower": scores.gap[tie] > 0,
    }


def _prompts(runs: Sequence[StockRun], sets: tuple[str, ...]) -> dict[str, NDArray[np.int32]]:
    """One row per test prompt."""
    rows = [
        (sets.index(request.set), len(request.prompt_ids), length)
        for run in runs
        for request, length in zip(run.services[-1][1], np.diff(run.services[-1][2].offsets), strict=True)
    ]
    table = np.array(rows, dtype=np.int32)
    return {"prompt_set": table[:, 0], "prompt_length": table[:, 1], "reply_length": table[:, 2]}


def _source(run: StockRun) -> dict[str, Any]:
    identity = RunFolder.open(run.path).read_json("fingerprints.json")["stock"]["identity"]
    plan = RunFolder.open(run.path).read_json("plan.json")
    return {
        "model": plan["model"],
        "seed": plan["seed"],
        "num_requests": plan["budget"]["num_requests"],
        "max_tokens": plan["budget"]["max_tokens"],
        "device": str(identity.get("engine.device_name") or identity.get("engine.device") or "unknown"),
        "num_tokens": sum(scores.num_tokens for _, _, scores in run.services),
    }
