"""``lossguard doctor``: what is here, and what a run will cost."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lossguard.cli.console import write
from lossguard.cli.output import write_report


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    baseline: Annotated[str, typer.Option(help="the system to try")] = "stock",
    config: Annotated[Path | None, typer.Option("--config", help="a lossguard.toml (default: the demo's)")] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="write the findings to this file")] = None,
) -> int:
    """Show versions, devices, engines and scorers, try the baseline, and estimate what each budget costs."""
    from lossguard.config import load_config
    from lossguard.demo import demo_config
    from lossguard.gate import doctor as diagnose
    from lossguard.gate_result import EXIT_INTERNAL, EXIT_PASS
    from lossguard.plan import DEFAULT_SEED

    found = diagnose(load_config(config) if config else demo_config(DEFAULT_SEED), baseline)
    write_report(json_path, found.to_json())
    for finding in found.findings:
        write(f"{'ok  ' if finding.is_ok else 'FAIL'}  {finding.subject}: {finding.text}")
    return EXIT_PASS if found.is_ok else EXIT_INTERNAL
