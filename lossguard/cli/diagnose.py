"""``lossguard doctor``: what is here, and what a run will cost."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from lossguard.cli.console import write
from lossguard.cli.output import write_report

if TYPE_CHECKING:
    from lossguard.config import Config


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("doctor")(doctor)


def doctor(
    baseline: Annotated[str, typer.Option(help="the system to try")] = "stock",
    scorer: Annotated[
        str | None, typer.Option(help="only compare [scorer] with this one: [scorers.NAME], or a kind of scorer")
    ] = None,
    run: Annotated[
        Path | None, typer.Option(help="with --scorer: score what this run kept (default: a few replies made now)")
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", help="a lossguard.toml (default: the nearest, or else the built-in model)"),
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="write the findings to this file")] = None,
) -> int:
    """Show versions, devices, engines and scorers, try the baseline, and estimate what each budget costs."""
    from lossguard.config import has_config, load_config
    from lossguard.demo_targets import SMOLLM2
    from lossguard.gate import doctor as diagnose
    from lossguard.gate_result import EXIT_INTERNAL, EXIT_PASS
    from lossguard.plan import DEFAULT_SEED

    loaded = load_config(config) if config or has_config() else SMOLLM2.config(DEFAULT_SEED)
    if scorer is not None:
        return _compare(loaded, scorer, (baseline, run), json_path)
    if run is not None:
        raise typer.BadParameter("--run goes with --scorer")
    found = diagnose(loaded, baseline)
    write_report(json_path, found.to_json())
    for finding in found.findings:
        write(f"{'ok  ' if finding.is_ok else 'FAIL'}  {finding.subject}: {finding.text}")
    return EXIT_PASS if found.is_ok else EXIT_INTERNAL


def _compare(config: Config, scorer: str, replies: tuple[str, Path | None], json_path: Path | None) -> int:
    from lossguard.gate import compare_scorers, comparison_in_words
    from lossguard.gate_result import EXIT_PASS

    baseline, run = replies
    found = compare_scorers(config, scorer, baseline=baseline, run=run)
    write_report(json_path, found.to_json())
    for line in comparison_in_words(found):
        write(line)
    return EXIT_PASS
