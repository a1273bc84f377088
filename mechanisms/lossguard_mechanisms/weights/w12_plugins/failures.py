"""Errors of the plug-ins, each in one place (docs/errors/w12.md)."""

from __future__ import annotations

from lossguard.errors import UsageError


def converted_folder(engine: str) -> UsageError:
    """A converted folder, where a server converts an ordinary one itself."""
    return UsageError(
        f"the model's config names the quantization w12 already, and {engine} loads ordinary weights",
        why="a server reads bf16 weights, splits them over devices and converts what it has; it reads no W12 files",
        fix="serve the model's original folder with --quantization w12",
        code="LG1214",
    )
