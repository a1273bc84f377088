"""The list of claims that must reach a verdict (``--lossguard-require``)."""

from __future__ import annotations

from pathlib import Path

from lossguard.pytest_plugin.marker import CLAIM
from lossguard.pytest_plugin.problems import bad_manifest


def read_manifest(path: Path) -> tuple[str, ...]:
    """One claim a line, '#' begins a comment. Raises UsageError LG0805."""
    try:
        lines = path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise bad_manifest(path, f"cannot be read: {error}") from error
    claims: list[str] = []
    for number, line in enumerate(lines, 1):
        claim = line.partition("#")[0].strip()
        if not claim:
            continue
        if not CLAIM.fullmatch(claim):
            raise bad_manifest(path, f"line {number}: {claim!r} is no claim")
        if claim in claims:
            raise bad_manifest(path, f"line {number}: {claim!r} is there twice")
        claims.append(claim)
    if not claims:
        raise bad_manifest(path, "it holds no claim")
    return tuple(claims)
