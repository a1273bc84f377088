"""What can be wrong with a recorded baseline, as errors."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from lossguard.errors import BaselineError, StorageError, UsageError

RECORD_IT = "record it: lossguard baseline record, or pytest --lossguard-update=new"


def missing(path: Path) -> BaselineError:
    """LG0701: there is no file."""
    return BaselineError(
        f"there is no baseline record {path}",
        why="without stock's replies a candidate is compared with nothing",
        fix=RECORD_IT,
        code="LG0701",
    )


def damaged(path: Path, found: str) -> BaselineError:
    """LG0702: the file does not hold what was written."""
    return BaselineError(
        f"the baseline record {path} is damaged: {found}",
        why="thresholds and replies that changed on disk would judge the candidate by something else than stock",
        fix="restore the file (git checkout), or record it again",
        code="LG0702",
    )


def unknown_schema(path: Path, version: str, known: int) -> BaselineError:
    """LG0703: another lossguard wrote it in a form that this one cannot read."""
    return BaselineError(
        f"the baseline record {path} has schema version {version}; this lossguard reads versions up to {known}",
        why="a field that is not understood may change what the record means",
        fix="use the lossguard that recorded it or a later one, or record it again with this one",
        code="LG0703",
    )


def other_parameters(path: Path, differences: Sequence[str]) -> BaselineError:
    """LG0704: it was recorded for another claim, or with other parameters."""
    return BaselineError(
        f"the baseline record {path} is of something else: {'; '.join(differences)}",
        why="stock's replies to other requests, or under other options, say nothing about this claim",
        fix="plan as it was recorded, or record it again for this plan",
        code="LG0704",
    )


def not_comparable(path: Path, differences: Sequence[str]) -> BaselineError:
    """LG0705: stock here is not the stock that was recorded."""
    return BaselineError(
        f"the baseline record {path} is not comparable with stock here: {'; '.join(differences)}",
        why="another model, machine or version rounds otherwise, and the candidate would be blamed for it",
        fix="judge where it was recorded, run stock live (--lossguard-live), or record it again here",
        code="LG0705",
    )


def other_prompts(path: Path, found: str) -> BaselineError:
    """LG0706: the prompt sets have changed since."""
    return BaselineError(
        f"the baseline record {path} answers other prompts than this plan asks: {found}",
        why="a prompt file, the tokenizer or the chat template has changed, and old replies do not fit new prompts",
        fix="restore the prompts, or record it again",
        code="LG0706",
    )


def not_writable(path: Path, error: OSError) -> StorageError:
    """LG0707: the store cannot be written."""
    return StorageError(
        f"cannot write the baseline record {path}: {error.strerror or error}",
        why="a record that is not on disk has to be served again; the records that were there are intact",
        fix="make room or give write permission, then record again",
        code="LG0707",
    )


def bad_name(found: str) -> UsageError:
    """LG0708: a name, claim or parameter that a record cannot carry."""
    return UsageError(
        found,
        why="a record is found again by its baseline's name, its claim and its parameters",
        fix="use letters, digits, '.', '_' and '-' in names, a claim that is not empty, and JSON values as options",
        code="LG0708",
    )


def recorded_already(run: Path, record: Path) -> UsageError:
    """LG0710: the stock of a run was a record itself."""
    return UsageError(
        f"the stock of {run} was the record {record}",
        why="a record made from that run would state its scorer and its date for replies of another time",
        fix="copy that record, or record stock itself",
        code="LG0710",
    )
