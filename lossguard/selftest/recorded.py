"""Recorded comparisons: the arms of a finished run, and samples of their requests of any size."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from lossguard.checks.base import Arm, CheckInput, IntArray, Thresholds
from lossguard.checks.events import unaudited_events
from lossguard.engines.model_facts import read_model_facts
from lossguard.errors import UsageError
from lossguard.models import resolve_model
from lossguard.records import AuditedEvent, ForcedScores, Request
from lossguard.run_folder import RunFolder, read_audit, read_outputs
from lossguard.scoring.columns import concat_scores, load_scores, offsets_of

_COLUMNS = ("served_id", "gap", "best_logit", "rank", "best_id", "logprob", "top_ids", "top_logits", "finite")


def recorded_systems(run: Path) -> tuple[str, ...]:
    """The candidates of a run that are scored, sorted. Raises UsageError LG0904 if there is none."""
    names = tuple(sorted(path.parent.name for path in run.glob("*/stock-scores-0000.safetensors")))
    if not names:
        raise UsageError(
            f"{run} holds no scored candidate",
            why="rates, rho and detection are measured on outputs that were served and scored",
            fix="name the folder of a finished run, such as .lossguard/run-0001",
            code="LG0904",
        )
    return names


def read_comparison(run: Path, candidate: str) -> CheckInput:
    """One candidate of a finished run beside stock, as its checks saw it."""
    folder = RunFolder.open(run)
    plan = folder.read_json("plan.json")
    requests, calibrating = (
        folder.read_requests("requests.jsonl"),
        folder.read_requests("calibration-requests.jsonl"),
    )
    name = plan["baseline"]
    stock, own = folder.path / name, folder.path / candidate
    thresholds = Thresholds.from_json(folder.read_json("calibration.json"))
    facts = read_model_facts(str(resolve_model(plan["model"], Path(plan["config_folder"]))))
    return CheckInput(
        requests=requests,
        stock=_arm(name, stock / "outputs.jsonl", own, "stock-scores", requests),
        candidate=audited_throughout(_arm(candidate, own / "outputs.jsonl", own, "scores", requests), thresholds),
        thresholds=thresholds,
        calibration_requests=calibrating,
        calibration=_arm(
            plan["baseline"], stock / "calibration-outputs.jsonl", stock, "calibration-scores", calibrating
        ),
        expect={},
        vocab_size=facts.vocab_size,
        seed=int(plan["seed"]),
    )


def _arm(name: str, outputs: Path, folder: Path, stem: str, requests: Sequence[Request]) -> Arm:
    found, _ = read_outputs(outputs, repair=False)
    shards = [load_scores(path) for path in sorted(folder.glob(f"{stem}-[0-9]*.safetensors"))]
    audit = outputs.parent / "audit.jsonl"
    return Arm(
        name=name,
        outputs=[found[request.id] for request in requests],
        scores=concat_scores(shards),
        audit=read_audit(audit) if outputs.name == "outputs.jsonl" and audit.is_file() else (),
    )


def audited_throughout(arm: Arm, thresholds: Thresholds) -> Arm:
    """The arm with events that nobody audited decided as most of its audited ones were.

    An audit ends as soon as FAIL is certain for the whole run; in a sample of it the others would have been audited.
    Without an audited event they stay open.
    """
    answers = [event.explained for event in arm.audit if event.explained is not None]
    if not answers:
        return arm
    is_explained = sum(answers) * 2 > len(answers)
    known = {(event.request_id, event.position): event for event in arm.audit if event.explained is not None}
    events = (event for _, found in unaudited_events(arm, thresholds) for event in found)
    audit = (
        known.get(
            (event.request_id, event.position), replace(event, explained=is_explained, reason="as the audited ones")
        )
        for event in events
    )
    return replace(arm, audit=tuple(audit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampler:
    """Draws requests with replacement; each draw is a prompt of its own, with both arms' replies and their audits."""

    given: CheckInput

    def draw(self, number: int, seed: int, *, exchanges: bool) -> CheckInput:
        """``number`` requests; with ``exchanges`` each has its arms exchanged or not, at random."""
        generator = np.random.default_rng(seed)
        rows = generator.integers(0, len(self.given.requests), size=number)
        sides = generator.integers(0, 2, size=number) if exchanges else np.zeros(number, dtype=np.int64)
        requests = tuple(replace(self.given.requests[row], id=str(at), cluster=str(at)) for at, row in enumerate(rows))
        arms = (self.given.candidate, self.given.stock)
        return replace(
            self.given,
            requests=requests,
            candidate=_mixed(arms, rows, sides),
            stock=_mixed(arms, rows, 1 - sides),
            seed=seed,
        )


def _mixed(arms: tuple[Arm, Arm], rows: IntArray, sides: IntArray) -> Arm:
    """Request ``rows[i]`` of arm ``sides[i]`` becomes request i."""
    chosen = [arms[side] for side in sides]
    outputs = [
        replace(arm.outputs[row], request_id=str(at)) for at, (arm, row) in enumerate(zip(chosen, rows, strict=True))
    ]
    by_request: list[dict[str, list[AuditedEvent]]] = [{}, {}]
    for side, arm in enumerate(arms):
        for event in arm.audit:
            by_request[side].setdefault(event.request_id, []).append(event)
    audit = [
        replace(event, request_id=str(at))
        for at, (side, row) in enumerate(zip(sides, rows, strict=True))
        for event in by_request[side].get(arms[side].outputs[row].request_id, ())
    ]
    return Arm(name=arms[int(sides[0])].name, outputs=outputs, scores=_scores(arms, rows, sides), audit=tuple(audit))


def _scores(arms: tuple[Arm, Arm], rows: IntArray, sides: IntArray) -> ForcedScores:
    both = [arm.scores for arm in arms]
    shift = both[0].num_tokens  # the second arm's tokens follow the first's
    spans = [
        np.arange(both[side].offsets[row], both[side].offsets[row + 1]) + side * shift
        for row, side in zip(rows, sides, strict=True)
    ]
    tokens = np.concatenate(spans)
    columns = {name: np.concatenate([getattr(scores, name) for scores in both])[tokens] for name in _COLUMNS}
    lengths = np.array([len(span) for span in spans], dtype=np.int64)
    return ForcedScores(request_ids=tuple(map(str, range(len(rows)))), offsets=offsets_of(lengths), **columns)
