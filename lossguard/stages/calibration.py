"""Calibration: stock alone, on prompts that the test does not use, before any candidate is scored."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from lossguard.checks.base import Arm, Thresholds
from lossguard.checks.calibrate import CalibrationInput, calibrate
from lossguard.errors import IntegrityError
from lossguard.records import ForcedScores, Request
from lossguard.run_folder import reading
from lossguard.scoring.base import ScoringJob
from lossguard.scoring.columns import concat_scores, load_scores, save_scores, select
from lossguard.seals import combined_seal, is_sealed, seal
from lossguard.stages.canaries import score_canaries
from lossguard.stages.forcing import ForcingTask, force, shards_of
from lossguard.stages.serving import Asking, is_complete, serve_in_groups, serve_missing
from lossguard.stages.validation import scorable
from lossguard.stages.workspace import RunRequests, Workspace, with_logprobs

RESCORING_REQUESTS = 8  # the second scoring's batches differ from the first's


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """Stock on the calibration prompts, twice, and the thresholds that follow."""

    requests: tuple[Request, ...]
    stock: Arm
    recomposed: Arm
    thresholds: Thresholds
    canaries: ForcedScores | None = None
    """A few of stock's replies scored once more, before any candidate ran; None in a run that kept none."""


def run_calibration(workspace: Workspace, requests: RunRequests) -> Calibration:
    """Serve, score and freeze thresholds; each part is read back where an earlier run left it."""
    stock, recomposed = _serve(workspace, requests.calibration)
    stock, recomposed = _force(workspace, requests.calibration, stock, recomposed)
    thresholds = _saved_thresholds(workspace, len(requests.calibration))
    if thresholds is None:
        thresholds = _thresholds(workspace, requests.calibration, stock, recomposed)
        keep_thresholds(workspace, thresholds, len(requests.calibration))
    return Calibration(
        requests=requests.calibration,
        stock=stock,
        recomposed=recomposed,
        thresholds=thresholds,
        canaries=score_canaries(workspace, requests.calibration, stock, system=workspace.plan.stock.name),
    )


def _saved_thresholds(workspace: Workspace, num_requests: int) -> Thresholds | None:
    """Thresholds of an earlier call. Raises IntegrityError LG0619 if the replies behind them are others now."""
    run = workspace.folder.path
    files = run / "calibration.json", run / "calibration-sources.json"
    if not all([is_sealed(run, file) for file in files]):
        return None
    if workspace.folder.read_json(files[1].name) != _sources(workspace, num_requests):
        raise IntegrityError(
            f"the calibration replies in {run} are not those from which its thresholds were learned",
            why="thresholds are frozen before any candidate is scored; new ones in the same run would follow it",
            fix="start a new run",
            code="LG0619",
        )
    with reading(files[0]):
        return Thresholds.from_json(workspace.folder.read_json(files[0].name))


def keep_thresholds(workspace: Workspace, thresholds: Thresholds, num_requests: int) -> None:
    """Freeze thresholds: written and sealed, with the scores that they were learned from."""
    written = [
        workspace.folder.write_json("calibration.json", thresholds.to_json()),
        workspace.folder.write_json("calibration-sources.json", _sources(workspace, num_requests)),
    ]
    seal(workspace.folder.path, written)


def _sources(workspace: Workspace, num_requests: int) -> dict[str, str]:
    folder, run = workspace.folder.system(workspace.plan.stock.name), workspace.folder.path
    stems = "calibration-scores", "recomposed-scores"
    return {stem: combined_seal(run, shards_of(folder / stem, num_requests)) for stem in stems}


def recomposition(requests: Sequence[Request], concurrency: int) -> list[list[Request]]:
    """Other neighbours and other padding: sorted by prompt length, at half the concurrency."""
    size = max(1, concurrency // 2)
    by_length = sorted(requests, key=lambda request: (-len(request.prompt_ids), request.id))
    return [by_length[first : first + size] for first in range(0, len(by_length), size)]


def _serve(workspace: Workspace, requests: Sequence[Request]) -> tuple[Arm, Arm]:
    config, folder = workspace.plan.stock, workspace.folder.system(workspace.plan.stock.name)
    paths = folder / "calibration-outputs.jsonl", folder / "recomposed-outputs.jsonl"
    num_tokens = sum(request.sampling.max_tokens for request in requests)
    with workspace.listener.stage(f"{config.name}: calibration replies", 2 * num_tokens, "tokens") as progress:
        outputs = serve_missing(
            lambda: workspace.engine(config),
            requests,
            paths[0],
            progress,
            Asking(ask=with_logprobs, note=workspace.note),
        )
        groups = [requests] if is_complete(requests, paths[1]) else _groups(workspace, requests)
        again = serve_in_groups(lambda: workspace.engine(config), groups, paths[1], progress)
    nothing = _no_scores()
    return (
        Arm(name=config.name, outputs=outputs, scores=nothing),
        Arm(name=f"{config.name} recomposed", outputs=[again[request.id] for request in requests], scores=nothing),
    )


def _groups(workspace: Workspace, requests: Sequence[Request]) -> list[list[Request]]:
    return recomposition(requests, workspace.engine(workspace.plan.stock).capabilities.concurrency)


def _force(workspace: Workspace, requests: Sequence[Request], stock: Arm, recomposed: Arm) -> tuple[Arm, Arm]:
    folder = workspace.folder.system(workspace.plan.stock.name)
    task = ForcingTask(
        run=workspace.folder.path,
        requests=requests,
        arms=[stock.outputs, recomposed.outputs],
        stems=[folder / "calibration-scores", folder / "recomposed-scores"],
    )
    with workspace.listener.stage("scoring calibration", _num_tokens(stock, recomposed), "tokens") as progress:
        scores, again = force(workspace.scorer, task, progress)
    return replace(stock, scores=scores), replace(recomposed, scores=again)


def _thresholds(workspace: Workspace, requests: Sequence[Request], stock: Arm, recomposed: Arm) -> Thresholds:
    capabilities = workspace.engine(workspace.plan.stock).capabilities
    needs_rescoring = capabilities.logit_dtype == "float32" or capabilities.max_logprobs < 2
    path = workspace.folder.system(workspace.plan.stock.name) / "rescored.safetensors"
    return calibrate(
        CalibrationInput(
            requests=requests,
            stock=stock,
            recomposed=recomposed,
            rescored=_rescored(workspace, requests, stock, path) if needs_rescoring else None,
            logit_dtype=capabilities.logit_dtype,
            seed=workspace.plan.effective_seed,
            knows_logits=workspace.scorer_capabilities().logits,
        )
    )


def _rescored(workspace: Workspace, requests: Sequence[Request], stock: Arm, path: Path) -> ForcedScores:
    """Stock's replies scored once more in other batches: the scorer's own noise."""
    if is_sealed(workspace.folder.path, path):
        return load_scores(path)
    jobs = [
        ScoringJob(request=request, outputs=(scorable(output),))
        for request, output in zip(requests, stock.outputs, strict=True)
    ][::-1]
    shards = [
        workspace.scorer().score(jobs[first : first + RESCORING_REQUESTS])[0]
        for first in range(0, len(jobs), RESCORING_REQUESTS)
    ]
    scores = select(concat_scores(shards), [request.id for request in requests])
    save_scores(path, scores)
    seal(workspace.folder.path, [path])
    return scores


def _num_tokens(*arms: Arm) -> int:
    return sum(len(output.ids) for arm in arms for output in arm.outputs)


def _no_scores() -> ForcedScores:
    """Stands in until the replies are scored; no check ever sees it."""
    import numpy as np

    empty = np.empty(0)
    return ForcedScores(
        request_ids=(),
        offsets=np.zeros(1, dtype=np.int64),
        served_id=empty.astype(np.int32),
        gap=empty.astype(np.float32),
        best_logit=empty.astype(np.float32),
        rank=empty.astype(np.int32),
        best_id=empty.astype(np.int32),
        logprob=empty.astype(np.float32),
        top_ids=np.empty((0, 2), dtype=np.int32),
        top_logits=np.empty((0, 2), dtype=np.float32),
        finite=empty.astype(np.bool_),
    )
