"""What identifies a server: its configuration, its version, and what it says about itself."""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from lossguard.engines.base import EngineSpec
from lossguard.engines.servers.dialect import DialectFacts
from lossguard.engines.servers.options import ServerOptions
from lossguard.engines.servers.transport import Transport
from lossguard.errors import EngineError

SECRET = re.compile(r"KEY|TOKEN|SECRET|PASSWORD|CREDENTIAL", re.IGNORECASE)
VERSION_SECONDS = 120.0
VERSION_PROGRAM = "import importlib.metadata as m; print(m.version({package!r}))"
PYTHON = re.compile(r"python[0-9.]*$")


def configured_facts(spec: EngineSpec, dialect: DialectFacts, options: ServerOptions) -> dict[str, Any]:
    """Facts that hold before the server runs. The port is not among them, nor the value of any key."""
    version, reason = _version(dialect, options)
    return {
        "engine": dialect.name,
        "url": options.url,
        "launch": options.launch if options.launch is None or isinstance(options.launch, str) else list(options.launch),
        "env": {name: "set" if SECRET.search(name) else value for name, value in sorted(options.env.items())},
        "devices": list(options.devices),
        "model_name": options.model_name,
        "concurrency": options.concurrency,
        "stagger_seconds": options.stagger,
        "stream": options.stream,
        "logit_dtype": options.logit_dtype,
        "logprobs": options.logprobs,
        "version": version,
        "reasons": [*options.reasons, reason],
    }


async def told_facts(transport: Transport, dialect: DialectFacts) -> dict[str, str]:
    """What the server says about itself, of the dialect's keys; a page that it does not have says so."""
    facts: dict[str, str] = {}
    for path in dialect.fact_paths:
        try:
            document = (await transport.get_json(path)).value
        except EngineError as error:
            if error.code != "LG0222":
                raise
            facts[path] = "not there"
            continue
        facts.update({f"{path} {name}": value for name, value in _leaves(document, dialect.fact_keys)})
    return facts


def _leaves(value: Any, keys: tuple[str, ...], name: str = "", plain: str = "") -> Iterator[tuple[str, str]]:
    """Members whose path is one of ``keys`` (array indexes left out of it), as JSON."""
    if isinstance(value, dict):
        for key, item in value.items():
            yield from _leaves(item, keys, f"{name}.{key}".lstrip("."), f"{plain}.{key}".lstrip("."))
    elif isinstance(value, list):
        for index, item in enumerate(value[:16]):
            yield from _leaves(item, keys, f"{name}[{index}]", plain)
    elif plain in keys:
        yield name, json.dumps(value)[:400]


def _version(dialect: DialectFacts, options: ServerOptions) -> tuple[str | None, str]:
    """The version behind a launch command, without launching it; None with the reason where it cannot be had."""
    if options.launch is None:
        return None, "version: see what the server says about itself"
    words = shlex.split(options.launch) if isinstance(options.launch, str) else list(options.launch)
    command = _version_command(dialect, words)
    if command is None:
        return None, f"version unknown: {words[0]} is no Python program, and has no known version option"
    try:
        done = subprocess.run(  # noqa: S603 - the program of the configuration, asked for its version
            command, capture_output=True, text=True, timeout=VERSION_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        return None, f"version unknown: {error}"
    text = (done.stdout.strip() or done.stderr.strip()).splitlines()
    if done.returncode != 0 or not text:
        return None, f"version unknown: {shlex.join(command)} ended with exit code {done.returncode}"
    return text[0][:200], f"version {text[0][:200]}, from {shlex.join(command)}"


def _version_command(dialect: DialectFacts, words: list[str]) -> list[str] | None:
    program = shutil.which(words[0])
    if program is None:
        return None
    if dialect.version_argument is not None:
        return [program, dialect.version_argument]
    interpreter = program if PYTHON.search(Path(program).name) else _interpreter_of(Path(program))
    if dialect.package is None or interpreter is None:
        return None
    return [interpreter, "-c", VERSION_PROGRAM.format(package=dialect.package)]


def _interpreter_of(program: Path) -> str | None:
    """The Python of a console script, from its first line."""
    with program.open("rb") as file:
        first = file.readline(512)
    words = first[2:].decode("utf-8", "replace").split() if first.startswith(b"#!") else []
    return words[0] if words and PYTHON.search(Path(words[0]).name) else None
