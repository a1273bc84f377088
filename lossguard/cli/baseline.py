"""``lossguard baseline record``, ``list``, ``show`` and ``prune``."""

from __future__ import annotations

import os
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossguard.cli.console import ConsoleListener, write
from lossguard.cli.output import write_report

if TYPE_CHECKING:
    from lossguard.baseline.schema import BaselineRecord
    from lossguard.baseline.store import BaselineStore, RecordInfo
    from lossguard.plan import Plan

HELP = "Recorded baselines: what stock served and scored once, a file per claim."
StoreOption = Annotated[Path, typer.Option("--store", help="the folder of recorded baselines")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="write the same as JSON to this file")]
STORE = Path(".lossguard-baselines")


def register(app: typer.Typer) -> None:
    """Add the group of commands."""
    group = typer.Typer(help=HELP, no_args_is_help=True)
    group.command("record")(record)
    group.command("list")(list_records)
    group.command("show")(show)
    group.command("prune")(prune)
    app.add_typer(group, name="baseline")


def record(
    name: Annotated[str, typer.Argument(help="the system to record, such as stock")] = "stock",
    claim: Annotated[list[str] | None, typer.Option(help="a claim's id; may be given several times")] = None,
    any_claim: Annotated[
        bool, typer.Option("--any-claim", help="for every claim with these sizes that has no record of its own")
    ] = False,
    config: Annotated[Path | None, typer.Option("--config", help="a lossguard.toml or pyproject.toml")] = None,
    budget: Annotated[str | None, typer.Option(help="quick, standard, full or REQUESTSxTOKENS[xCALIBRATION]")] = None,
    seed: Annotated[int | None, typer.Option(help="seed of resampling and sampled replies")] = None,
    temperature: Annotated[float | None, typer.Option(help="record sampled replies at this temperature")] = None,
    repeats: Annotated[int | None, typer.Option(help="replies per prompt")] = None,
    folder: Annotated[Path, typer.Option(help="where run folders are made")] = Path(".lossguard"),
    resume: Annotated[Path | None, typer.Option(help="continue the run folder of an interrupted recording")] = None,
    from_run: Annotated[Path | None, typer.Option("--from", help="take the stock of a finished run folder")] = None,
    store: StoreOption = STORE,
    replace_existing: Annotated[bool, typer.Option("--replace", help="overwrite a record that is there")] = False,
    allow_ci: Annotated[bool, typer.Option("--allow-ci", help="record although the variable CI is set")] = False,
) -> int:
    """Serve and score a system alone, or take it from a finished run, and keep it as the baseline of claims."""
    from lossguard.baseline.parameters import ANY_CLAIM
    from lossguard.baseline.permission import require_may_record
    from lossguard.baseline.store import BaselineStore

    require_may_record(os.environ, is_allowed=allow_ci, option="--allow-ci")
    given = {"budget": budget, "seed": seed, "temperature": temperature, "repeats": repeats}
    asked: dict[str, Any] = {key: value for key, value in given.items() if value is not None}
    claims = list(dict.fromkeys([*([ANY_CLAIM] if any_claim else []), *(claim or [])]))
    if not claims:
        raise typer.BadParameter("give --claim ID or --any-claim: a record is found again by its claim")
    if resume and from_run:
        raise typer.BadParameter("--resume continues a recording, --from reads a finished run: give one of them")
    earlier = resume or from_run
    plan = _resumed(earlier, asked) if earlier else _plan(config, name, folder, asked)
    if plan.stock.name != name:
        raise typer.BadParameter(f"the stock of {earlier} is {plan.stock.name!r}, not {name!r}")
    _record_claims(Recording(plan=plan, from_run=from_run), claims, BaselineStore(store), is_replacing=replace_existing)
    return 0


def list_records(
    name: Annotated[str | None, typer.Argument(help="one baseline (default: all)")] = None,
    store: StoreOption = STORE,
    json_path: JsonOption = None,
) -> int:
    """List the records with claim, sizes and date; exit code 4 if one of them cannot be used."""
    from lossguard.baseline.store import BaselineStore
    from lossguard.gate_result import EXIT_PASS, EXIT_USAGE

    found = BaselineStore(store).records(name)
    write_report(json_path, {"records": [_info_to_json(info) for info in found]})
    for info in found:
        write(_line(info))
    if not found:
        write(f"no records in {store / name if name else store}")
    return EXIT_USAGE if any(info.problem for info in found) else EXIT_PASS


def show(
    path: Annotated[Path, typer.Argument(help="a record file, as listed")],
    json_path: JsonOption = None,
) -> int:
    """Show what a record was made from: parameters, thresholds, fingerprint."""
    from lossguard.baseline.record import load_record

    shown = _facts(load_record(path))
    write_report(json_path, shown)
    for key, value in shown.items():
        if not isinstance(value, dict):
            write(f"{key}: {value}")
            continue
        write(f"{key}:")
        for inner, item in sorted(value.items()):
            write(f"  {inner}: {item}")
    return 0


def prune(
    name: Annotated[str, typer.Argument(help="the baseline")],
    keep: Annotated[list[str] | None, typer.Option(help="a claim to keep; may be given several times")] = None,
    store: StoreOption = STORE,
    delete: Annotated[bool, typer.Option("--delete", help="delete them; without it they are only listed")] = False,
) -> int:
    """Delete the records of claims that are not named; without --delete, list what would go."""
    from lossguard.baseline.store import BaselineStore

    if not keep:
        raise typer.BadParameter("give at least one --keep CLAIM: pruning everything is rm's business")
    baselines = BaselineStore(store)
    known = {info.claim for info in baselines.records(name)}
    unknown = sorted(set(keep) - known)
    if unknown:
        raise typer.BadParameter(f"no record has the claim {unknown[0]!r}; there are: {', '.join(sorted(known))}")
    for path in baselines.prune(name, keep) if delete else baselines.unwanted(name, keep):
        write(f"{'deleted' if delete else 'would delete'} {path}")
    return 0


def _plan(config: Path | None, name: str, folder: Path, asked: dict[str, Any]) -> Plan:
    from lossguard.config import load_config
    from lossguard.plan import Plan

    return replace(Plan(load_config(config), baseline=name, folder=folder), **asked)


def _resumed(run: Path, asked: dict[str, Any]) -> Plan:
    from lossguard.gate import load_plan

    if asked:
        raise typer.BadParameter("--resume and --from take the plan of the run folder: leave the other options out")
    return load_plan(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What to record: a plan's stock, or that of a finished run."""

    plan: Plan
    from_run: Path | None

    def make(self, claim: str, target: Path) -> None:
        """Write the record of one claim."""
        from lossguard.gate import record_baseline, record_from_run

        if self.from_run is None:
            record_baseline(self.plan, claim=claim, target=target, listener=ConsoleListener())
        else:
            record_from_run(self.from_run, claim=claim, target=target)


def _record_claims(recording: Recording, claims: list[str], store: BaselineStore, *, is_replacing: bool) -> None:
    """Stock is served once; its replies are the same for every claim with these parameters."""
    from lossguard.baseline.record import claim_parameters, load_record, write_record

    name, parameters = recording.plan.stock.name, claim_parameters(recording.plan)
    paths = [store.path(name, claim, parameters) for claim in claims]
    there = [path for path in paths if path.exists()]
    if there and not is_replacing:
        raise typer.BadParameter(f"{there[0]} exists; give --replace to record it again")
    recording.make(claims[0], paths[0])
    served = load_record(paths[0])
    for claim, path in zip(claims[1:], paths[1:], strict=True):
        write_record(path, replace(served, claim=claim))
    for claim, path in zip(claims, paths, strict=True):
        write(f"recorded {_words(claim)}: {path} ({path.stat().st_size / 1e6:.1f} MB)")


def _info_to_json(info: RecordInfo) -> dict[str, Any]:
    return {
        "name": info.name,
        "claim": info.claim,
        "created": info.created,
        "sizes": dict(info.sizes),
        "path": str(info.path),
        "problem": info.problem,
    }


def _line(info: RecordInfo) -> str:
    if not info.claim:
        return f"{info.name}  UNUSABLE  {info.path}\n    {info.problem}"
    sizes = f"{info.sizes.get('num_requests')}x{info.sizes.get('max_tokens')}"
    problem = f"\n    UNUSABLE: {info.problem}" if info.problem else ""
    return f"{info.name}  {_words(info.claim)}  {sizes}  {info.created}  {info.path}{problem}"


def _words(claim: str) -> str:
    from lossguard.baseline.parameters import ANY_CLAIM

    return "any claim" if claim == ANY_CLAIM else claim


def _facts(shown: BaselineRecord) -> dict[str, Any]:
    return {
        "name": shown.name,
        "claim": shown.claim,
        "created": shown.created,
        "producer_version": shown.producer_version,
        "rules_sha256": shown.rules_sha256,
        "prompts_sha256": shown.prompts_sha256,
        "num_calibration_requests": len(shown.calibration_requests),
        "num_test_requests": len(shown.test_requests),
        "num_test_tokens": sum(len(output.ids) for output in shown.test),
        "parameters": dict(shown.parameters),
        "thresholds": shown.thresholds.to_json(),
        "scorer": dict(shown.scorer),
        "fingerprint": dict(shown.fingerprint.identity),
    }
