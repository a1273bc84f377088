"""``lossguard demo``: the instrument on a small model, with candidates whose right verdict is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from lossguard.cli.console import ConsoleListener, write
from lossguard.cli.output import finish, write_report


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("demo")(demo)


def demo(
    json_path: Annotated[Path | None, typer.Option("--json", help="write the JSON report to this file")] = None,
    target: Annotated[str, typer.Option(help="the model: hybrid (in a checkout) or smollm2")] = "hybrid",
    seed: Annotated[int, typer.Option(help="redraws prompts, and where the faults strike")] = 17,
    folder: Annotated[Path, typer.Option(help="where run folders are made")] = Path(".lossguard"),
    resume: Annotated[Path | None, typer.Option(help="continue this run folder")] = None,
    device: Annotated[str | None, typer.Option(help="device of all systems, such as cuda")] = None,
) -> int:
    """Judge seven candidates on a small model: two lose nothing and must pass, five lose something and must fail.

    Exits 0 only if each gets the verdict, by the named check, that it must get.
    """
    from lossguard.demo import Demo, run_demo
    from lossguard.report.terminal import render_table

    shown = Demo(target=target, seed=seed, device=device)
    result = run_demo(shown, folder=folder, resume=resume, listener=ConsoleListener(), command=sys.argv)
    finish(result.gate.report, None)
    write_report(json_path, result.to_json())
    write(f"\n{render_table(result.rows())}\n")
    write("demo: every verdict is right" if result.exit_code == 0 else "demo: a verdict is WRONG")
    return result.exit_code
