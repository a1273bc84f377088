"""What is here: versions, devices, engines, scorers, the model, the scorer's own noise, and what a run would cost."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import entry_points
from typing import Any

import numpy as np

from lossguard.config import Config
from lossguard.engines.base import Engine, EngineSpec
from lossguard.engines.registry import engine_factory
from lossguard.errors import LossguardError
from lossguard.host_facts import host_facts
from lossguard.models import resolve_model
from lossguard.plan import BUDGETS, Budget
from lossguard.prompts.render import stop_ids_of
from lossguard.records import Request, ServedOutput
from lossguard.scoring.base import Scorer, ScoringJob
from lossguard.scoring.registry import scorer_factory
from lossguard.stages.devices import held_devices, overlaps, scorer_devices
from lossguard.stages.estimate import Speed, cost_of, in_words, measure_speed
from lossguard.stages.probes import calibration_requests, shortest
from lossguard.stages.serving import answers
from lossguard.stages.validation import scorable

PROBE_TOKENS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One line of the diagnosis. ``is_ok`` False means that a run would stop or be INCONCLUSIVE there."""

    subject: str
    is_ok: bool
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Diagnosis:
    """Everything that the doctor found."""

    findings: tuple[Finding, ...]

    @property
    def is_ok(self) -> bool:
        """Whether nothing stands in the way of a run."""
        return all(finding.is_ok for finding in self.findings)

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {"is_ok": self.is_ok, "findings": [asdict(finding) for finding in self.findings]}


def doctor(config: Config, baseline: str = "stock") -> Diagnosis:
    """Look at the machine and try the baseline and the scorer on a few prompts. Never raises LossguardError."""
    findings = [_host(), *_entry_points()]
    for subject, look in (
        ("model", lambda: [_model(config)]),
        ("baseline", lambda: _try_run(config, baseline)),
    ):
        findings += _found(subject, look)
    return Diagnosis(findings=tuple(findings))


def _found(subject: str, look: Callable[[], list[Finding]]) -> list[Finding]:
    try:
        return look()
    except LossguardError as error:
        return [Finding(subject=subject, is_ok=False, text=str(error))]


def _host() -> Finding:
    facts, _measured = host_facts()
    text = ", ".join(f"{key}={value}" for key, value in sorted(facts.items()) if value is not None)
    return Finding(subject="host", is_ok=True, text=text)


def _entry_points() -> list[Finding]:
    findings = []
    for group in ("lossguard.engines", "lossguard.scorers", "lossguard.checks", "lossguard.commands"):
        for point in sorted(entry_points(group=group)):
            findings.append(_importable(group, point.name, point.value))
    return findings


def _importable(group: str, name: str, target: str) -> Finding:
    subject = f"{group.partition('.')[2].removesuffix('s')} {name}"
    try:
        importlib.import_module(target.partition(":")[0])
    except ImportError as error:
        return Finding(subject=subject, is_ok=False, text=f"cannot be imported: {error}")
    return Finding(subject=subject, is_ok=True, text="installed")


def _model(config: Config) -> Finding:
    path = resolve_model(config.model, config.folder)
    return Finding(subject="model", is_ok=True, text=f"{config.model} in {path}, stop ids {list(stop_ids_of(path))}")


def _try_run(config: Config, baseline: str) -> list[Finding]:
    system = config.system(baseline)
    path = str(resolve_model(system.model or config.model, config.folder))
    engine = engine_factory(system.engine)(EngineSpec(name=system.name, model_path=path, options=system.options))
    with ExitStack() as opened:
        opened.callback(engine.close)

        @cache
        def scorer() -> Scorer:
            """Made when the engine has served, which gives way where the two cannot be there together."""
            if overlaps(scorer_devices(config.scorer), held_devices(engine)):
                engine.close()
            target = str(resolve_model(config.model, config.folder))
            made = scorer_factory(config.scorer.engine)(target, config.scorer.options)
            opened.callback(made.close)
            return made

        return _measure(config, engine, scorer)


def _measure(config: Config, engine: Engine, scorer: Callable[[], Scorer]) -> list[Finding]:
    every = calibration_requests(config, PROBE_TOKENS)
    requests = shortest(every)
    outputs = answers(engine, requests)
    speed = measure_speed(engine, scorer, requests)
    noise = _noise(scorer(), requests, outputs)
    served = f"a batch of {speed.batch_size} makes a token each in {speed.batch_step:.2g} s"
    scored = f"{1 / speed.scored_token:.0f} tokens/s; two scorings in other batches differ by at most {noise:.2g} nats"
    mean_prompt = sum(len(request.prompt_ids) for request in every) / len(every)
    return [
        Finding(subject="baseline", is_ok=True, text=f"served {len(requests)} requests; {served}"),
        Finding(subject="scorer", is_ok=True, text=scored),
        *[_cost(budget, speed, mean_prompt) for budget in BUDGETS.values()],
    ]


def _noise(scorer: Scorer, requests: Sequence[Request], outputs: dict[str, ServedOutput]) -> float:
    """Largest |gap - gap| between batched and single scoring, in nats."""
    jobs = [ScoringJob(request=request, outputs=(scorable(outputs[request.id]),)) for request in requests]
    together = scorer.score(jobs)[0]
    alone = np.concatenate([scorer.score([job])[0].gap for job in jobs])
    known = np.isfinite(together.gap) & np.isfinite(alone)
    return float(np.abs(together.gap - alone)[known].max(initial=0.0))


def _cost(budget: Budget, speed: Speed, mean_prompt: float) -> Finding:
    sizes = [
        (count, round(count * mean_prompt), count * budget.max_tokens)
        for count in (budget.num_calibration, budget.num_requests)
    ]
    cost = cost_of(speed, sizes[0], sizes[1], num_candidates=1)
    text = f"about {in_words(cost.serving_seconds)} serving, {in_words(cost.scoring_seconds)} scoring for one candidate"
    return Finding(subject=f"budget {budget.name}", is_ok=True, text=text)
