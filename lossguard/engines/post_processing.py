"""Functions of the configuration that act on finished replies."""

from __future__ import annotations

from collections.abc import Sequence

from lossguard.engines.extensions import Extension
from lossguard.errors import EngineError
from lossguard.records import Request, ServedOutput


def post_processed(extensions: Sequence[Extension], request: Request, output: ServedOutput) -> ServedOutput:
    """The reply after each of the functions in turn. Raises EngineError LG0218 if one gives back something else."""
    for extension in extensions:
        output = extension.load()(output, request, **extension.arguments)
        if not isinstance(output, ServedOutput):
            raise EngineError(
                f"the post processor {extension.target} returned a {type(output).__name__}",
                why="what it returns is the reply that will be judged",
                fix="return a ServedOutput (dataclasses.replace of the one given)",
                code="LG0218",
            )
    return output
