"""``--lossguard-update``: new records go into the store here, on the controller and nowhere else."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lossguard.errors import LossguardError
from lossguard.pytest_plugin.decision import Row
from lossguard.pytest_plugin.options import Settings

if TYPE_CHECKING:
    from lossguard.baseline.store import BaselineStore

OPTION = "--lossguard-allow-ci-update"


def require_update_allowed(settings: Settings) -> None:
    """Raise UsageError LG0709 for a session that would record in CI without being told to."""
    if not settings.is_recording:
        return
    from lossguard.baseline.permission import require_may_record

    require_may_record(os.environ, is_allowed=settings.allow_ci_update, option=OPTION)


def store_records(rows: Sequence[Row], store: BaselineStore) -> list[Row]:
    """Copy what the tests recorded into the store. A record that cannot be stored makes its row an error."""
    stored: list[Row] = []
    for row in rows:
        if row.status != "RECORDED" or row.message is None:
            stored.append(row)
            continue
        try:
            path = store.put(row.message.baseline, Path(row.message.record_path))
        except LossguardError as error:
            stored.append(replace(row, status="ERROR", reason=f"{error.code}: {error.found}"))
        else:
            stored.append(replace(row, reason=str(path)))
    return stored
