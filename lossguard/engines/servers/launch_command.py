"""From a launch template to the words of a command: ``{model}``, ``{port}``, ``{devices}``, ``{num_devices}``."""

from __future__ import annotations

import re
import shlex
import shutil
import socket
from collections.abc import Mapping

from lossguard.engines.options import bad_option
from lossguard.engines.servers.problems import cannot_launch
from lossguard.errors import near_miss

HOST = "127.0.0.1"
PLACEHOLDER = re.compile(r"\{([a-z_]+)\}")  # braces of JSON arguments hold quotes, and stay as they are


def launch_words(system: str, template: str | tuple[str, ...], values: Mapping[str, str]) -> list[str]:
    """The command. Values are put in after the template is split, so that a path may hold spaces.

    Raises UsageError LG0204 for an unknown placeholder or a quote without its end.
    """
    try:
        words = shlex.split(template) if isinstance(template, str) else list(template)
    except ValueError as error:
        raise bad_option(system, f"has a launch command that no shell would split: {error}") from error
    for word in words:
        for name in PLACEHOLDER.findall(word):
            if name not in values:
                raise bad_option(system, f"has {{{name}}} in its launch command. {near_miss(name, values)}")
    return [PLACEHOLDER.sub(lambda found: values[found[1]], word) for word in words]


def require_program(system: str, words: list[str]) -> None:
    """Raise UsageError LG0228 if there is no such program."""
    if shutil.which(words[0]) is None:
        raise cannot_launch(system, f"there is no program {words[0]!r}")


def choose_port(system: str, wanted: int | None) -> int:
    """The wanted port if nothing listens there, else any free one. Raises UsageError LG0228.

    On a port that is taken, the health check would be answered by somebody else's server.
    """
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, wanted or 0))
        except (OSError, OverflowError) as error:
            raise cannot_launch(system, f"port {wanted} cannot be had: {error}") from error
        return int(probe.getsockname()[1])
