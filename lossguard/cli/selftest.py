"""``lossguard selftest``: prove the instrument before trusting it."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lossguard.cli.console import ConsoleListener, write
from lossguard.cli.output import write_report

if TYPE_CHECKING:
    from lossguard.selftest.base import SelftestOptions

SubjectArgument = Annotated[str | None, typer.Argument(help="losslessness, timing, ... (default: all installed)")]
JsonOption = Annotated[Path | None, typer.Option("--json", help="write the findings to this file")]


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("selftest")(selftest)


def selftest(
    subject: SubjectArgument = None,
    simulate: Annotated[bool, typer.Option("--simulate", help="only the simulated error rates")] = False,
    live: Annotated[bool, typer.Option("--live", help="only what needs running systems")] = False,
    full: Annotated[bool, typer.Option("--full", help="every cell and every fault, at full size")] = False,
    seed: Annotated[int | None, typer.Option(help="redraws everything that is drawn")] = None,
    workers: Annotated[int, typer.Option(min=1, help="processes; changes no figure")] = 1,
    size: Annotated[int | None, typer.Option(min=20, help="simulated comparisons a cell")] = None,
    folder: Annotated[Path, typer.Option(help="where run folders are made")] = Path(".lossguard"),
    resume: Annotated[Path | None, typer.Option(help="continue this run folder (live)")] = None,
    device: Annotated[str | None, typer.Option(help="device of live systems, such as cuda")] = None,
    json_path: JsonOption = None,
) -> int:
    """Measure the instrument's own error rates, and let it judge systems with planted faults.

    Exits 0 only if every promise in docs/validity.md holds.
    """
    from lossguard.selftest.base import DEFAULT_SEED, SelftestOptions

    options = SelftestOptions(
        seed=DEFAULT_SEED if seed is None else seed,
        is_full=full,
        folder=folder,
        resume=resume,
        num_workers=workers,
        size=size,
        device=device,
    )
    return _run(subject, (simulate, live), options, json_path)


def _run(subject: str | None, chosen: tuple[bool, bool], options: SelftestOptions, json_path: Path | None) -> int:
    from lossguard.selftest.base import render
    from lossguard.selftest.registry import Kind, part_names, run_parts

    kinds = tuple(kind for kind, is_chosen in zip(Kind, chosen, strict=True) if is_chosen) or tuple(Kind)
    result = run_parts(part_names(subject, kinds), options, ConsoleListener())
    write_report(json_path, result.to_json())
    for part in result.parts:
        write(f"{render(part)}\n")
    write(f"selftest: {result.verdict.value} -> exit {result.exit_code}")
    return result.exit_code
