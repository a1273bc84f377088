"""``lossguard time`` and ``lossguard noise``."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from lossguard.cli.console import ConsoleListener, write
from lossguard.cli.output import finish, write_report

if TYPE_CHECKING:
    from lossguard.gate_result import GateResult
    from lossguard.plan import Plan

NOISE_HELP = "Noise of stock against stock, through the pipeline that times candidates."
STORE = Path(".lossguard-baselines")
ConfigOption = Annotated[Path | None, typer.Option("--config", help="a lossguard.toml or pyproject.toml")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="write the same as JSON to this file")]
StoreOption = Annotated[Path, typer.Option("--store", help="the folder of recorded baselines and noise profiles")]
FolderOption = Annotated[Path, typer.Option(help="where run folders are made")]
RequestsOption = Annotated[int | None, typer.Option(help="requests of a run (default: 32)")]
TokensOption = Annotated[int | None, typer.Option(help="tokens of a reply (default: 64)")]
DevicesOption = Annotated[
    str | None, typer.Option(help="one or two, with a comma between: cuda:0,cuda:1 or cpu:0-3,cpu:4-7")
]
RelaunchOption = Annotated[str | None, typer.Option(help="process (default), or reset for engines that can prove it")]
OrderOption = Annotated[str | None, typer.Option(help="abba (default) or random")]
LoadOption = Annotated[float | None, typer.Option(help="share of a core that other processes may take (default: 0.2)")]


def register(app: typer.Typer) -> None:
    """Add the commands."""
    app.command("time")(time)
    group = typer.Typer(help=NOISE_HELP, no_args_is_help=True)
    group.command("record")(record)
    group.command("show")(show)
    app.add_typer(group, name="noise")


def time(
    baseline: Annotated[str | None, typer.Option(help="the stock system's name (default: stock)")] = None,
    candidate: Annotated[list[str] | None, typer.Option(help="a candidate's name; may be given several times")] = None,
    config: ConfigOption = None,
    faster_than: Annotated[float | None, typer.Option(help="factor that must be shown, such as 1.2")] = None,
    not_slower: Annotated[float | None, typer.Option(help="instead: at most this much slower, such as 0.01")] = None,
    pairs: Annotated[int | None, typer.Option(help="swap pairs (default: 8; a verdict takes 4)")] = None,
    requests: RequestsOption = None,
    tokens: TokensOption = None,
    devices: DevicesOption = None,
    estimand: Annotated[str | None, typer.Option(help="population (default), suite or throughput")] = None,
    metric: Annotated[str | None, typer.Option(help="latency (default), ttft or inter_token")] = None,
    order: OrderOption = None,
    relaunch: RelaunchOption = None,
    fixed: Annotated[bool, typer.Option("--fixed", help="look once, after the last pair")] = False,
    max_foreign_load: LoadOption = None,
    seed: Annotated[int | None, typer.Option(help="seed of nonces and of a random order")] = None,
    folder: FolderOption = Path(".lossguard"),
    store: StoreOption = STORE,
    resume: Annotated[Path | None, typer.Option(help="continue this run folder; takes its plan")] = None,
    json_path: JsonOption = None,
) -> int:
    """Time candidates against a baseline in device-swapped pairs; exit 0 only if every gain is real."""
    given = {
        "faster_than": faster_than,
        "not_slower": not_slower,
        "pairs": pairs,
        "requests": requests,
        "tokens": tokens,
        "devices": _names(devices),
        "estimand": estimand,
        "metric": metric,
        "order": order,
        "relaunch": relaunch,
        "sequential": False if fixed else None,
        "max_foreign_load": max_foreign_load,
    }
    asked = {key: value for key, value in given.items() if value is not None}
    if resume:
        plan = _resumed(resume, bool(candidate or asked or seed is not None or baseline))
    else:
        if not candidate:
            raise typer.BadParameter("give at least one --candidate NAME (or --resume RUN)")
        named = {"candidates": candidate, "baseline": baseline or "stock", "seed": seed}
        plan = _plan(config, folder, store, asked, named)
    return _finish(plan, json_path)


def record(
    name: Annotated[str, typer.Argument(help="the system, such as stock")] = "stock",
    config: ConfigOption = None,
    pairs: Annotated[int | None, typer.Option(help="A/A swap pairs (default: 8, the least that is used)")] = None,
    requests: RequestsOption = None,
    tokens: TokensOption = None,
    devices: DevicesOption = None,
    order: OrderOption = None,
    relaunch: RelaunchOption = None,
    max_foreign_load: LoadOption = None,
    folder: FolderOption = Path(".lossguard"),
    store: StoreOption = STORE,
    resume: Annotated[Path | None, typer.Option(help="continue the run folder of an interrupted recording")] = None,
) -> int:
    """Time a system against itself and keep the noise profile beside its baseline."""
    from lossguard.gate import record_noise

    given = {
        "noise_pairs": pairs,
        "requests": requests,
        "tokens": tokens,
        "devices": _names(devices),
        "order": order,
        "relaunch": relaunch,
        "max_foreign_load": max_foreign_load,
    }
    asked = {key: value for key, value in given.items() if value is not None}
    if resume:
        plan = replace(_resumed(resume, bool(asked)), baseline=name)
    else:
        plan = _plan(config, folder, store, asked, {"baseline": name})
    path = record_noise(plan, listener=ConsoleListener())
    write(f"recorded {path}")
    return show(name, store=path.parent.parent)


def show(
    name: Annotated[str | None, typer.Argument(help="one baseline (default: all)")] = None,
    store: StoreOption = STORE,
    json_path: JsonOption = None,
) -> int:
    """Show recorded noise profiles: sizes, devices, noise of a swap pair with its upper bounds."""
    from lossguard.baseline.noise_record import list_noise, read_noise

    records = {str(path): read_noise(path) for path in list_noise(store, name)}
    write_report(json_path, {"profiles": {path: found.to_json() for path, found in records.items()}})
    for path, found in records.items():
        summary, sizes = found.summary, found.conditions
        write(
            f"{found.baseline}  {sizes['requests']}x{sizes['tokens']}  {sizes['design']}  "
            f"{found.fingerprint.identity.get('device.timed')}  {summary['num_pairs']} pairs  "
            f"noise {100 * summary['rms']:.3g} % a pair, at most {100 * summary['upper_95']:.3g} % (95 %)  "
            f"{found.created}  {path}"
        )
    if not records:
        write(f"no noise profiles in {store / name if name else store}")
    return 0


def _names(devices: str | None) -> tuple[str, ...] | None:
    return None if devices is None else tuple(part.strip() for part in devices.split(","))


def _plan(config: Path | None, folder: Path, store: Path, asked: dict[str, Any], named: dict[str, Any]) -> Plan:
    from lossguard.config import load_config
    from lossguard.plan import Plan
    from lossguard.timing_plan import make_timing

    found = load_config(config)
    rules = {"faster_than", "not_slower"} if asked.keys() & {"faster_than", "not_slower"} else set()
    table = {key: value for key, value in found.timing.items() if key not in rules}
    return Plan(found, folder=folder, timing=make_timing({"noise_root": store, **table, **asked}), **named)


def _resumed(run: Path, has_options: bool) -> Plan:
    from lossguard.gate import load_plan

    if has_options:
        raise typer.BadParameter("--resume takes the plan of its run folder: leave the other options out")
    return load_plan(run)


def _finish(plan: Plan, json_path: Path | None) -> int:
    from lossguard.gate import run_timing

    result: GateResult = run_timing(plan, listener=ConsoleListener(), command=sys.argv)
    finish(result.report, json_path)
    return result.exit_code
