"""Texts in which stop strings are looked for: those of a reply's ids, with and without the last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from lossguard.checks.base import Arm
from lossguard.records import Request
from lossguard.stages.workspace import Workspace


def with_stop_texts(workspace: Workspace, requests: Sequence[Request], *arms: Arm) -> tuple[Arm, ...]:
    """The same arms, with the texts that the stop check needs where a request has stop strings."""
    if not any(request.sampling.stop_strings for request in requests):
        return arms
    return tuple(replace(arm, stop_texts=_texts(workspace, requests, arm)) for arm in arms)


def _texts(workspace: Workspace, requests: Sequence[Request], arm: Arm) -> list[tuple[str, str] | None]:
    return [
        (
            workspace.reply_text(request.prompt_ids, output.ids),
            workspace.reply_text(request.prompt_ids, output.ids[:-1]),
        )
        if request.sampling.stop_strings
        else None
        for request, output in zip(requests, arm.outputs, strict=True)
    ]
