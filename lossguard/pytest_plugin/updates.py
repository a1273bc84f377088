"""``--lossguard-update``: new records go into the store here, on the controller and nowhere else."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from lossguard.errors import LossguardError
from lossguard.pytest_plugin.decision import Row
from lossguard.pytest_plugin.options import Settings
from lossguard.pytest_plugin.problems import second_writer

if TYPE_CHECKING:
    import pytest

    from lossguard.baseline.store import BaselineStore

OPTION = "--lossguard-allow-ci-update"
# Where other plugins keep "write what you find as the new baseline", and what their users type.
OTHER_WRITERS = (
    ("update_snapshots", "--snapshot-update"),
    ("snapshot_update", "--snapshot-update"),
    ("force_regen", "--force-regen"),
    ("regen_all", "--regen-all"),
    ("benchmark_save", "--benchmark-save"),
    ("benchmark_autosave", "--benchmark-autosave"),
)


def require_update_allowed(settings: Settings) -> None:
    """Raise UsageError LG0709 for a session that would record in CI without being told to."""
    if not settings.is_recording:
        return
    from lossguard.baseline.permission import require_may_record

    require_may_record(os.environ, is_allowed=settings.allow_ci_update, option=OPTION)


def require_only_writer(config: pytest.Config) -> None:
    """Raise UsageError LG0813 if another plugin is to write baselines of its own in this session."""
    for dest, option in OTHER_WRITERS:
        if config.getoption(dest, None):
            raise second_writer(f"--lossguard-update and {option} are given together")


def hold_store(root: Path) -> Callable[[], None]:
    """Lock the store's folder until the function that is returned is called, or the process ends.

    The lock is on the folder itself, so that nothing is left in it. Raises UsageError LG0813 if another session
    records into it, StorageError LG0707 if it cannot be written.
    """
    from lossguard.baseline.atomic import require_writable

    require_writable(root / "lock")
    descriptor = os.open(root, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(descriptor)
        raise second_writer(f"another session is recording into {root}") from error
    return lambda: os.close(descriptor)


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
