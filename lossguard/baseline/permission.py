"""Recording in CI: never unless asked."""

from __future__ import annotations

from collections.abc import Mapping

from lossguard.errors import UsageError

_OFF = frozenset({"", "0", "false", "no"})


def is_ci(environment: Mapping[str, str]) -> bool:
    """Whether the variable ``CI`` is set to anything but an explicit no."""
    return environment.get("CI", "").strip().lower() not in _OFF


def require_may_record(environment: Mapping[str, str], *, is_allowed: bool, option: str) -> None:
    """Raise UsageError LG0709 in CI unless the user has given ``option``, which is named in the message."""
    if is_allowed or not is_ci(environment):
        return
    raise UsageError(
        "a baseline was to be recorded, and the variable CI is set",
        why="a baseline that CI makes for itself agrees with whatever CI runs, and nobody has looked at it",
        fix=f"record it on your machine and commit the file; if CI is to record, give {option}",
        code="LG0709",
    )
