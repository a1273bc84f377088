"""``lossguard serve``: a server of the configuration in the foreground."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command("serve")(serve)


def serve(
    name: Annotated[str, typer.Argument(help="a system with a launch command")],
    config: Annotated[Path | None, typer.Option("--config", help="a lossguard.toml or pyproject.toml")] = None,
) -> int:
    """Start one system exactly as a run would, show its log, and end it with Ctrl-C."""
    from lossguard.config import load_config
    from lossguard.gate import serve_foreground
    from lossguard.gate_result import EXIT_INTERNAL, EXIT_PASS

    try:
        code = serve_foreground(load_config(config), name, _write)
    except KeyboardInterrupt:  # the way to end it
        return EXIT_PASS
    return EXIT_PASS if code == 0 else EXIT_INTERNAL


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
