"""A recorded baseline in place of a live run of stock: checked against the plan, then laid out as a run's own files.

After that the run finds stock complete on disk and serves only the candidate; stock starts only to audit events.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from lossguard.baseline.problems import not_comparable, other_prompts
from lossguard.baseline.record import (
    BaselineRecord,
    RecordFile,
    claim_parameters,
    parse_record,
    read_bytes,
    require_parameters,
)
from lossguard.fingerprint import comparable
from lossguard.plan import Plan
from lossguard.records import ServedOutput
from lossguard.run_folder import write_atomically
from lossguard.stages.calibration import keep_thresholds
from lossguard.stages.facts import BASELINE_FILE, stock_fingerprint
from lossguard.stages.forcing import ForcingTask, save_forced
from lossguard.stages.workspace import RunRequests, Workspace, keep_requests, planned_requests


def read_recorded(plan: Plan) -> RecordFile | None:
    """The plan's record, read and compared with its parameters before anything is made or started.

    None if stock runs live, or if the run that is resumed has taken the record over already. Raises BaselineError
    LG0701 to LG0704.
    """
    if plan.record is None or (plan.resume is not None and (plan.resume / BASELINE_FILE).is_file()):
        return None
    found = parse_record(read_bytes(plan.record), plan.record)
    require_parameters(found.record, claim_parameters(plan), plan.record)
    return found


def require_usable(workspace: Workspace, found: RecordFile) -> Path:
    """The record's path, if what is asked and who answers are as they were recorded; stock is made but not started.

    Raises BaselineError LG0706 if the prompts give other requests today, LG0705 if stock's fingerprint here differs.
    """
    path = workspace.plan.record
    assert path is not None, "only a plan with a record can use one"
    _require_same_requests(planned_requests(workspace), found.record, path)
    differences = comparable(found.record.fingerprint, stock_fingerprint(workspace))
    if differences:
        raise not_comparable(path, [str(difference) for difference in differences])
    return path


def materialise(workspace: Workspace, found: RecordFile, rules_sha256: str) -> None:
    """Lay the record out in the run folder; the file that says so comes last, so that a crash begins again.

    Raises BaselineError as ``require_usable``.
    """
    path, record = require_usable(workspace, found), found.record
    if record.rules_sha256 != rules_sha256:
        workspace.note(
            f"the thresholds of {path} were frozen by other rules (lossguard {record.producer_version}); "
            "they are used as recorded"
        )
    keep_requests(workspace.folder, _requests(record))
    _write_stock(workspace, record)
    workspace.folder.write_json(BASELINE_FILE, _facts(found, path))


def _require_same_requests(planned: RunRequests, record: BaselineRecord, path: Path) -> None:
    asked = (*planned.calibration, *planned.test)
    recorded = (*record.calibration_requests, *record.test_requests)
    if len(asked) != len(recorded):
        raise other_prompts(path, f"{len(recorded)} requests were recorded, {len(asked)} are planned")
    changed = [ours.id for ours, theirs in zip(asked, recorded, strict=True) if ours != theirs]
    if changed:
        raise other_prompts(path, f"{len(changed)} requests have changed, the first is {changed[0]!r}")
    if planned.sha256 != record.prompts_sha256:
        raise other_prompts(path, f"their hash is {planned.sha256[:12]}, recorded was {record.prompts_sha256[:12]}")


def _requests(record: BaselineRecord) -> RunRequests:
    return RunRequests(
        calibration=record.calibration_requests,
        test=record.test_requests,
        sha256=record.prompts_sha256,
        reasons=record.prompt_reasons,
    )


def _write_stock(workspace: Workspace, record: BaselineRecord) -> None:
    folder = workspace.folder.system(workspace.plan.stock.name)
    _write_outputs(folder / "calibration-outputs.jsonl", record.calibration)
    _write_outputs(folder / "recomposed-outputs.jsonl", record.recomposed)
    _write_outputs(folder / "outputs.jsonl", record.test)
    task = ForcingTask(
        run=workspace.folder.path,
        requests=record.calibration_requests,
        arms=[record.calibration, record.recomposed],
        stems=[folder / "calibration-scores", folder / "recomposed-scores"],
    )
    save_forced(task, [record.calibration_scores, record.recomposed_scores])
    keep_thresholds(workspace, record.thresholds, len(record.calibration_requests))


def _write_outputs(path: Path, outputs: Sequence[ServedOutput]) -> None:
    lines = (json.dumps(output.to_json(), allow_nan=False, ensure_ascii=False) for output in outputs)
    write_atomically(path, "".join(f"{line}\n" for line in lines))


def _facts(found: RecordFile, path: Path) -> dict[str, Any]:
    record = found.record
    return {
        "record": str(path),
        "sha256": found.sha256,
        "name": record.name,
        "claim": record.claim,
        "created": record.created,
        "producer_version": record.producer_version,
        "rules_sha256": record.rules_sha256,
        "scorer": dict(record.scorer),
        "fingerprint": record.fingerprint.to_json(),
    }
