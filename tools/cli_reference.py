"""docs/cli.md is made from the commands themselves: print it, write it (--write), or check that it is current."""

from __future__ import annotations

import argparse
import inspect
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

from lossguard.cli.main import build_app

PLACE = Path(__file__).parents[1] / "docs" / "cli.md"

HEAD = """# Command line

Made by `python -m tools.cli_reference --write` from the commands themselves; do not edit.

Every command ends with one of the [exit codes](exit-codes.md). An option that does not exist, or a value that does not
fit, is exit code 4, and nothing has run. `lossguard COMMAND --help` shows the same as this page.
"""


def page() -> str:
    """The whole page."""
    found = list(_commands(typer.main.get_command(build_app()), "lossguard"))
    rows = [(f"[`{name}`](#{_anchor(name)})", _first_line(command)) for name, command in found]
    parts = [HEAD, _table(("command", "what it does"), rows), *(_section(name, command) for name, command in found)]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _commands(command: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Every command below this one that does something itself."""
    nested = getattr(command, "commands", None)
    if nested is None:
        yield name, command
        return
    for child in sorted(nested):
        yield from _commands(nested[child], f"{name} {child}")


def _section(name: str, command: Any) -> str:
    arguments = [item for item in command.params if item.param_type_name == "argument"]
    options = [item for item in command.params if item.param_type_name == "option" and not item.hidden]
    usage = " ".join([name, *(_metavar(item) for item in arguments), *(["[OPTIONS]"] if options else [])])
    parts = [f"## {name}", inspect.cleandoc(command.help or ""), f"Usage: `{usage}`"]
    if arguments:
        rows = [(f"`{_metavar(item)}`", _said(item)) for item in arguments]
        parts.append(_table(("argument", "meaning"), rows))
    if options:
        lines = [(f"`{', '.join(item.opts)}`", _said(item), _default(item)) for item in options]
        parts.append(_table(("option", "meaning", "default"), lines))
    return "\n\n".join(parts)


def _metavar(item: Any) -> str:
    word = (item.metavar or item.name).upper() + ("..." if item.nargs == -1 else "")
    return word if item.required else f"[{word}]"


def _said(item: Any) -> str:
    several = "; may be given several times" if item.multiple and "several" not in (item.help or "") else ""
    return _cell((item.help or "") + several)


def _default(item: Any) -> str:
    if item.required:
        return "required"
    if item.default is None or callable(item.default) or item.default in ((), []):
        return ""
    return "off" if item.default is False else f"`{item.default}`"


def _first_line(command: Any) -> str:
    return _cell(inspect.cleandoc(command.help or "").partition("\n\n")[0])


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


def _anchor(name: str) -> str:
    return name.replace(" ", "-")


def _table(head: tuple[str, ...], rows: list[Any]) -> str:
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, tuple("---" for _ in head), *rows))


def main(arguments: list[str] | None = None) -> int:
    """1 if the page is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", action="store_true")
    choice.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    if given.write:
        PLACE.write_text(page(), encoding="utf-8")
    elif given.check:
        is_current = PLACE.exists() and PLACE.read_text(encoding="utf-8") == page()
        print(f"{PLACE.name} is {'current' if is_current else 'not current: python -m tools.cli_reference --write'}")
        return 0 if is_current else 1
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
