"""``lossguard check``, ``rejudge`` and ``recheck``."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lossguard.cli.console import ConsoleListener, write
from lossguard.cli.output import finish, write_report

if TYPE_CHECKING:
    from lossguard.gate_result import GateResult
    from lossguard.plan import Plan

JsonOption = Annotated[Path | None, typer.Option("--json", help="write the JSON report to this file")]
ConfigOption = Annotated[Path | None, typer.Option("--config", help="a lossguard.toml or pyproject.toml")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("check")(check)
    app.command("rejudge")(rejudge)
    app.command("recheck")(recheck)


def check(
    baseline: Annotated[str | None, typer.Option(help="the stock system's name (default: stock)")] = None,
    candidate: Annotated[list[str] | None, typer.Option(help="a candidate's name; may be given several times")] = None,
    config: ConfigOption = None,
    budget: Annotated[
        str | None, typer.Option(help="quick, standard, full or REQUESTSxTOKENS[xCALIBRATION] (default: standard)")
    ] = None,
    seed: Annotated[
        int | None,
        typer.Option(help="seed of resampling and sampled replies (prompts: [prompts] seed of the configuration)"),
    ] = None,
    temperature: Annotated[float | None, typer.Option(help="judge sampled replies at this temperature")] = None,
    repeats: Annotated[int | None, typer.Option(help="replies per prompt")] = None,
    strict: Annotated[
        bool, typer.Option("--strict", help="any token that differs from stock's fails (deterministic stacks only)")
    ] = False,
    folder: Annotated[Path, typer.Option(help="where run folders are made")] = Path(".lossguard"),
    resume: Annotated[Path | None, typer.Option(help="continue this run folder; takes its plan")] = None,
    json_path: JsonOption = None,
) -> int:
    """Judge candidates against a baseline by token forcing; exit 0 only if all are lossless."""
    given = {
        "baseline": baseline,
        "budget": budget,
        "seed": seed,
        "temperature": temperature,
        "repeats": repeats,
        "strict": strict or None,
    }
    asked: dict[str, object] = {key: value for key, value in given.items() if value is not None}
    plan = _resumed(resume, candidate, asked) if resume else _plan(config, candidate, folder, asked)
    return _finish(plan, json_path)


def rejudge(
    run: Annotated[Path, typer.Argument(help="a run folder, such as .lossguard/run-0007")], json_path: JsonOption = None
) -> int:
    """Apply the rules again to a run's saved replies and scores; nothing is served or scored."""
    from lossguard.gate import rejudge as rejudge_run

    return _print(rejudge_run(run, listener=ConsoleListener()), json_path)


def recheck(
    run: Annotated[Path, typer.Argument(help="a run folder")],
    request: Annotated[str, typer.Option(help="the request's id")],
    position: Annotated[int, typer.Option(help="position in the reply, from 0")],
    candidate: Annotated[str | None, typer.Option(help="the candidate, where the run has several")] = None,
    json_path: JsonOption = None,
) -> int:
    """Look at one position again: score it afresh and let stock serve it."""
    from lossguard.gate import recheck as recheck_position

    found = recheck_position(run, request_id=request, position=position, candidate=candidate)
    write_report(json_path, found.to_json())
    gap = "no such token in the vocabulary" if found.gap_nats is None else f"gap {found.gap_nats:.3f} nats"
    write(f"request {found.request_id}, position {found.position}, after ...{json.dumps(found.context)}")
    write(f"  {found.candidate} served {found.served_id} {json.dumps(found.served_text)}: rank {found.rank}, {gap}")
    if found.sampling is not None:
        place = "" if found.sampling.is_allowed else ", outside its support"
        write(f"  at temperature {found.sampling.temperature:g}: probability {found.sampling.probability:.3g}{place}")
    for token, text, logit in found.top:
        write(f"  target {logit:9.3f}  {token} {json.dumps(text)}")
    for name, token in found.replays.items():
        write(f"  stock's own decode, {name}: {token}{' (the same)' if token == found.served_id else ''}")
    return 0


def _plan(config: Path | None, candidates: list[str] | None, folder: Path, given: dict[str, object]) -> Plan:
    from lossguard.config import load_config
    from lossguard.plan import Plan

    if not candidates:
        raise typer.BadParameter("give at least one --candidate NAME (or --resume RUN)")
    return Plan(load_config(config), candidates=candidates, folder=folder, **given)  # type: ignore[arg-type]


def _resumed(run: Path, candidates: list[str] | None, given: dict[str, object]) -> Plan:
    from lossguard.gate import load_plan

    if candidates or given:
        raise typer.BadParameter("--resume takes the plan of its run folder: leave the other options out")
    return load_plan(run)


def _finish(plan: Plan, json_path: Path | None) -> int:
    from lossguard.gate import run_gate

    return _print(run_gate(plan, listener=ConsoleListener(), command=sys.argv), json_path)


def _print(result: GateResult, json_path: Path | None) -> int:
    finish(result.report, json_path)
    return result.exit_code
