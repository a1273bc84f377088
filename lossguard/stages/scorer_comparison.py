"""Two scorers on the same recorded replies: the noise between them, before one of them decides anything."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from lossguard.config import Config, ScorerConfig
from lossguard.engines.base import EngineSpec
from lossguard.engines.registry import engine_factory
from lossguard.errors import UsageError, near_miss
from lossguard.models import resolve_model
from lossguard.records import ForcedScores, Request
from lossguard.run_folder import RunFolder, read_outputs
from lossguard.scoring.base import ScorerCapabilities, ScoringJob, capabilities_of
from lossguard.scoring.comparison import ScorerNoise, scorer_noise
from lossguard.scoring.registry import scorer_factory, scorer_kinds
from lossguard.stages.probes import calibration_requests, shortest
from lossguard.stages.serving import answers
from lossguard.stages.validation import scorable

PROBE_TOKENS = 64
Jobs = Sequence[ScoringJob]


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerSide:
    """One scorer of a comparison."""

    name: str
    facts: Mapping[str, Any]
    capabilities: ScorerCapabilities


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerComparison:
    """The noise between two scorers, and on what."""

    source: str
    num_requests: int
    noise: ScorerNoise
    sides: tuple[ScorerSide, ScorerSide]

    @property
    def notes(self) -> tuple[str, ...]:
        """What a scorer cannot tell, as sentences."""
        return tuple(f"{side.name} {text}" for side in self.sides for text in _limits(side.capabilities))

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "notes": list(self.notes)}


def compare_scorers(config: Config, name: str, *, baseline: str = "stock", run: Path | None = None) -> ScorerComparison:
    """The configured scorer against ``name``: a table ``[scorers.NAME]``, or a kind of scorer that needs no options.

    The replies are those of an earlier run (every one that it kept), or without one those of ``baseline`` to a few
    prompts. One scorer is closed before the other starts. Raises UsageError LG0621 (no such scorer), LG0605 (no such
    run), and what serving and scoring raise.
    """
    second = named_scorer(config, name)
    groups, source = (_served(config, baseline), baseline) if run is None else (_recorded(run), str(run))
    path = str(resolve_model(config.model, config.folder))
    label = config.scorer.engine if config.scorer.engine != name else f"{name} (the configured one)"
    first_scores, first_side = _scored(config.scorer, label, path, groups)
    second_scores, second_side = _scored(second, name, path, groups)
    return ScorerComparison(
        source=source,
        num_requests=sum(len(jobs) for jobs in groups),
        noise=scorer_noise(first_scores, second_scores),
        sides=(first_side, second_side),
    )


def named_scorer(config: Config, name: str) -> ScorerConfig:
    """The scorer of that name. Raises UsageError LG0621."""
    if name in config.scorers:
        return config.scorers[name]
    if name in scorer_kinds() or ":" in name:
        return ScorerConfig(engine=name)
    raise UsageError(
        f"no scorer is called {name!r}. {near_miss(name, (*config.scorers, *scorer_kinds()))}",
        why="the noise between other scorers than those that were meant says nothing",
        fix=f"add a table [scorers.{name}] with engine and options, or name a kind of scorer",
        code="LG0621",
    )


def _scored(
    scorer: ScorerConfig, name: str, model_path: str, groups: Sequence[Jobs]
) -> tuple[list[ForcedScores], ScorerSide]:
    made = scorer_factory(scorer.engine)(model_path, scorer.options)
    try:
        scores = [arm for jobs in groups for arm in made.score(jobs)]
        side = ScorerSide(name=name, facts=dict(made.fingerprint()), capabilities=capabilities_of(made))
    finally:
        made.close()
    return scores, side


def _served(config: Config, baseline: str) -> list[Jobs]:
    system = config.system(baseline)
    path = str(resolve_model(system.model or config.model, config.folder))
    requests = shortest(calibration_requests(config, PROBE_TOKENS))
    engine = engine_factory(system.engine)(EngineSpec(name=system.name, model_path=path, options=system.options))
    try:
        outputs = answers(engine, requests)
    finally:
        engine.close()
    return [[ScoringJob(request=request, outputs=(scorable(outputs[request.id]),)) for request in requests]]


def _recorded(run: Path) -> list[Jobs]:
    """Every kept reply of a run to a greedy request: stock's calibration, and each system's test replies."""
    folder = RunFolder.open(run)
    calibration = folder.read_requests("calibration-requests.jsonl")
    test = folder.read_requests("requests.jsonl")
    files = [(calibration, path) for path in sorted(run.glob("*/calibration-outputs.jsonl"))]
    files += [(test, path) for path in sorted(run.glob("*/outputs.jsonl"))]
    groups = [_jobs(requests, path) for requests, path in files]
    return [jobs for jobs in groups if jobs]


def _jobs(requests: Sequence[Request], path: Path) -> list[ScoringJob]:
    outputs, _notes = read_outputs(path)
    kept = [request for request in requests if request.id in outputs and request.sampling.is_greedy]
    return [ScoringJob(request=request, outputs=(scorable(outputs[request.id]),)) for request in kept]


def _limits(capabilities: ScorerCapabilities) -> list[str]:
    found = []
    if not capabilities.logits:
        found.append("gives log-probabilities only: delta is q alone, without the ULP of a logit")
    if capabilities.num_ranked is not None:
        found.append(f"knows ranks up to {capabilities.num_ranked} only: others are lower bounds")
    if not capabilities.sampled:
        found.append("scores greedy replies only")
    return found


def in_words(found: ScorerComparison) -> list[str]:
    """Lines for people."""
    noise, names = found.noise, " against ".join(side.name for side in found.sides)
    lines = [f"{names}: {found.num_requests:,} replies of {found.source}, {noise.num_compared:,} tokens compared"]
    for what, part in (("gaps", noise.gap), ("log-probabilities", noise.logprob)):
        spread = f"max {part.max_nats:.3g}, 99.9 % {part.p999_nats:.3g}, rms {part.rms_nats:.3g} nats"
        lines.append(f"  {what} differ by: {spread}")
    best = f"  another best token at {noise.num_other_best:,} positions ({noise.other_best_share:.3%})"
    tie = f", where the two best lie up to {noise.other_best_nats:.3g} nats apart" if noise.num_other_best else ""
    lines.append(best + tie)
    if noise.num_one_sided:
        lines.append(f"  {noise.num_one_sided:,} tokens were scored by one of the two only")
    return lines + [f"  note: {note}" for note in found.notes]
