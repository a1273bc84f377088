"""Commands, exit codes, and errors as people read them."""

from __future__ import annotations

import sys
from importlib.metadata import entry_points

import typer

from lossguard.cli import baseline, check, compare, demo, diagnose, report, score, selftest, serve, timing
from lossguard.errors import LossguardError
from lossguard.gate_result import EXIT_INTERRUPTED, EXIT_USAGE

TYPER_INTERRUPTED = 130  # what typer makes of Ctrl-C
HELP = "Is a change to an LLM serving stack still lossless? Token forcing against a measured stock floor."


def build_app() -> typer.Typer:
    """The command tree: our own commands, then those of other packages (``lossguard.commands``)."""
    app = typer.Typer(help=HELP, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
    for module in (demo, check, report, compare, score, baseline, serve, selftest, diagnose, timing):
        module.register(app)
    for point in sorted(entry_points(group="lossguard.commands")):
        app.add_typer(point.load(), name=point.name)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and leave the process with an exit code (docs/exit-codes.md)."""
    sys.exit(run(arguments))


def run(arguments: list[str] | None = None) -> int:
    """Run the command line and return the exit code."""
    command = typer.main.get_command(build_app())
    try:
        result = command.main(args=arguments, prog_name="lossguard", standalone_mode=False)
    except LossguardError as error:
        sys.stderr.write(f"lossguard: {error}\n")
        return error.exit_code
    except typer.TyperException as error:  # an unknown command or option, or a value that does not fit
        sys.stderr.write(f"lossguard: {error.format_message()}\n")
        return EXIT_USAGE
    except (typer.Abort, KeyboardInterrupt):
        return _interrupted()
    if result == TYPER_INTERRUPTED:
        return _interrupted()
    return result if isinstance(result, int) else 0


def _interrupted() -> int:
    sys.stderr.write("\nlossguard: interrupted; what was served and scored is kept, continue with --resume RUN\n")
    return EXIT_INTERRUPTED
