"""``lossguard score``: token forcing of replies that were recorded elsewhere."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from lossguard.cli.console import ConsoleListener, write
from lossguard.cli.output import write_report


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("score")(score)


def score(
    source: Annotated[Path, typer.Argument(help='JSONL: {"id", "prompt_ids", "output_ids"} per line')],
    output: Annotated[Path, typer.Option(help="where the columns go")] = Path("scores.safetensors"),
    config: Annotated[
        Path | None, typer.Option("--config", help="a configuration; its model and scorer are used")
    ] = None,
    model: Annotated[
        str | None, typer.Option(help="the target instead of a configuration: a folder, or smollm2")
    ] = None,
    json_path: Annotated[Path | None, typer.Option("--json", help="write the summary to this file")] = None,
) -> int:
    """Teacher-force recorded replies through the target with an FP32 LM head and save gap, rank and the rest."""
    from lossguard.config import Config, load_config
    from lossguard.gate import score_file

    settings = Config(model=model, systems={}) if model else load_config(config)
    with ConsoleListener().stage(f"scoring {source}", 0, "tokens") as progress:
        found = score_file(settings, source, output, progress=progress)
    write_report(json_path, found.to_json())
    write(
        f"{found.num_requests} replies, {found.num_tokens:,} tokens: {found.num_not_best:,} are not the target's best, "
        f"mean gap {found.mean_gap_nats:.5f} nats, largest {found.max_gap_nats:.3f}; "
        f"{found.num_not_finite} without finite logits, {found.num_unknown_ids} ids outside the vocabulary"
    )
    for request_id, position, gap in found.worst:
        write(f"  {request_id} position {position}: gap {gap:.3f} nats")
    write(f"columns: {found.path}")
    return 0
