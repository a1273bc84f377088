"""The live selftest of losslessness: the gate judges planted faults and negative controls on a real model.

Covered: every planted fault must FAIL by a check that is named for it, every control must PASS. Not covered: error
rates, which need far more runs (the simulated part), and faults whose check does not exist yet.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass, field, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from lossguard.config import Config, PromptsConfig, ScorerConfig, SystemConfig
from lossguard.gate import load_plan, record_baseline, run_gate
from lossguard.gate_result import GateResult
from lossguard.listener import Listener
from lossguard.models import default_model_path
from lossguard.plan import Budget, Plan
from lossguard.selftest.base import SelftestOptions, SelftestPart
from lossguard_suites.adversarial.faults import FAULTS, Fault, fault
from lossguard_suites.adversarial.findings import finding_of, part_of

STOCK_BATCH = 64
GPU_SCALE = 4  # a GPU serves larger batches, and the controls' sizes grow with stock's


@dataclass(frozen=True, slots=True, kw_only=True)
class Round:
    """Candidates that share one stock run."""

    name: str
    faults: tuple[str, ...]
    budget: Budget
    asks: Mapping[str, Any] = field(default_factory=dict)  # what its requests ask for
    temperature: float = 0.0


QUICK_CONTROLS = ("by-length", "chunked-prompt")
QUICK_FAULTS = ("kept-drafts", "lost-splits", "early-stop", "swap-near-ties", "cut-replies", "mislabelled-end")
QUICK = (
    Round(
        name="controls",
        faults=QUICK_CONTROLS,
        budget=Budget(name="selftest-controls", num_requests=200, max_tokens=32, num_calibration=60),
    ),
    Round(
        name="faults",
        faults=QUICK_FAULTS,
        budget=Budget(name="selftest-faults", num_requests=32, max_tokens=40, num_calibration=24),
    ),
)
"""8 of them, for CI: controls need 200 clusters to pass, faults need fewer to fail. Prompts cost more than replies."""

FULL_BUDGET = Budget(name="selftest-full", num_requests=600, max_tokens=64, num_calibration=80)
DRAFTING_BUDGET = Budget(name="selftest-drafting", num_requests=210, max_tokens=48, num_calibration=80)
ASKING_BUDGET = Budget(name="selftest-asking", num_requests=210, max_tokens=48, num_calibration=80)
SAMPLED_BUDGET = Budget(name="selftest-sampled", num_requests=300, max_tokens=64, num_calibration=80)


def full_rounds() -> tuple[Round, ...]:
    """Everything whose check exists. Drafting controls verify one request at a time, so theirs is a smaller round.

    Faults in parameters, or of the sampler, need requests that ask for them, and so rounds of their own, each with its
    control.
    """
    wanted = [item for item in FAULTS if not item.is_pending]
    drafting = tuple(item.name for item in wanted if item.expect.get("drafts"))
    asking = [item for item in wanted if item.asks or item.temperature]
    plain = tuple(item.name for item in wanted if item.name not in drafting and item not in asking)
    asked = [(item.asks, item.temperature) for item in asking]
    kinds = [kind for at, kind in enumerate(asked) if kind not in asked[:at]]
    return (
        Round(name="drafting", faults=drafting, budget=DRAFTING_BUDGET),
        Round(name="full", faults=plain, budget=FULL_BUDGET),
        *(
            Round(
                name="-".join([*(name.replace("_", "-") for name in asks), *(["sampled"] if temperature else [])]),
                faults=tuple(item.name for item in asking if (item.asks, item.temperature) == (asks, temperature)),
                budget=SAMPLED_BUDGET if temperature else ASKING_BUDGET,
                asks=asks,
                temperature=temperature,
            )
            for asks, temperature in kinds
        ),
    )


def run(options: SelftestOptions, listener: Listener) -> SelftestPart:
    """The entry point ``losslessness-live`` of ``lossguard.selftests``.

    With several workers, stock is recorded once per round and the candidates are dealt to processes. Raises
    LossguardError.
    """
    rounds = full_rounds() if options.is_full else QUICK
    if options.num_workers == 1:
        results = [run_gate(_plan(current, current.faults, options), listener=listener) for current in rounds]
    else:
        results = _dealt(rounds, options, listener)
    return part_of([finding_of(fault(claim.candidate), claim) for result in results for claim in result.claims])


def live_config(names: Sequence[str], options: SelftestOptions, asks: Mapping[str, Any] | None = None) -> Config:
    """Stock, and a system for each of the named faults; places are drawn by the seed. ``asks`` is for all requests."""
    device: dict[str, Any] = {} if options.device is None else {"device": options.device}
    scale = GPU_SCALE if (options.device or "").startswith("cuda") else 1
    stock = {**device, "batch_size": STOCK_BATCH * scale}
    systems = {"stock": SystemConfig(name="stock", engine="transformers", options=stock)}
    for name in names:
        systems[name] = _system(fault(name), stock, scale, options.seed)
    return Config(
        model="smollm2",
        systems=systems,
        scorer=ScorerConfig(options=device),
        prompts=PromptsConfig(sets=("demo",), seed=options.seed),
        seed=options.seed,
        parameters=asks or {},
    )


def _system(planted: Fault, stock: dict[str, Any], scale: int, seed: int) -> SystemConfig:
    options = {**stock, **_with_model(planted.options(seed=seed))}
    if "batch_size" in planted.engine_options:
        options["batch_size"] = planted.engine_options["batch_size"] * scale
    if planted.expect.get("drafts"):
        options.pop("batch_size", None)
    return SystemConfig(name=planted.name, engine="transformers", options=options, expect=planted.expect)


def _with_model(value: Any) -> Any:
    """``{model}`` anywhere in the options stands for the target's folder."""
    if isinstance(value, dict):
        return {key: _with_model(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_with_model(item) for item in value]
    return str(default_model_path()) if value == "{model}" else value


def _plan(current: Round, names: Sequence[str], options: SelftestOptions, record: Path | None = None) -> Plan:
    resume = options.resume
    if resume is not None and list(load_plan(resume).candidates) != list(names):
        resume = None  # it is another round's
    return Plan(
        live_config(names, options, current.asks),
        candidates=names,
        budget=current.budget,
        temperature=current.temperature,
        folder=options.folder,
        resume=resume,
        record=record,
    )


def _dealt(rounds: Sequence[Round], options: SelftestOptions, listener: Listener) -> list[GateResult]:
    """Results of all jobs. Raises what a job raises, once the others are done."""
    options.folder.mkdir(parents=True, exist_ok=True)
    plans = []
    for current in rounds:
        target = options.folder / f"stock-{current.name}-{options.seed}.safetensors"
        listener.message(f"selftest: recording stock for the round {current.name!r}")
        stock_only = _plan(current, (), replace(options, resume=None))
        record_baseline(stock_only, claim=f"selftest/{current.name}", target=target, listener=listener)
        plans += [_plan(current, names, options, record=target) for names in _hands(current, options.num_workers)]
    title = f"selftest: {sum(len(plan.candidates) for plan in plans)} systems in {len(plans)} runs"
    with (
        ProcessPoolExecutor(options.num_workers, mp_context=get_context("spawn")) as pool,
        listener.stage(title, len(plans), "runs") as progress,
    ):
        jobs = [pool.submit(run_gate, plan) for plan in plans]
        for job in as_completed(jobs):
            job.exception()  # told below, when the other jobs are done
            progress(1)
    return [job.result() for job in jobs]


def _hands(current: Round, num_workers: int) -> list[tuple[str, ...]]:
    """Candidates dealt out: three hands per worker, so that a slow one holds up little."""
    num_hands = min(len(current.faults), 3 * num_workers)
    return [current.faults[first::num_hands] for first in range(num_hands)]
