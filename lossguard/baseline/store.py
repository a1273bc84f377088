"""The store of recorded baselines: one file per claim, so that parallel writers and merges never meet in one file.

Only pytest's controlling process and the command line write here, each record to a temporary name that is then
renamed. Nothing is ever deleted but by ``prune``.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from lossguard.baseline.atomic import write_bytes_atomically
from lossguard.baseline.parameters import ANY_CLAIM, SUFFIX, record_name, require_name
from lossguard.baseline.problems import not_writable, other_parameters
from lossguard.baseline.record import BaselineRecord, load_record, parse_record, read_bytes, require_parameters
from lossguard.errors import BaselineError

DEFAULT_ROOT = Path(".lossguard-baselines")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordInfo:
    """One file of the store. ``problem`` says why it is not used; ``claim`` is empty if the file cannot be read."""

    name: str
    path: Path
    claim: str = ""
    created: str = ""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    problem: str | None = None


@dataclass(frozen=True, slots=True)
class BaselineStore:
    """Records under ``root/NAME/<claim>-<hash of claim and parameters>.safetensors``."""

    root: Path = DEFAULT_ROOT

    def path(self, name: str, claim: str, parameters: Mapping[str, Any]) -> Path:
        """Where the record of a claim is, or would be. Raises UsageError LG0708."""
        return self.root / require_name(name) / record_name(claim, parameters)

    def find(self, name: str, claim: str, parameters: Mapping[str, Any]) -> Path | None:
        """The validated record of a claim, else the one for any claim with these parameters, else None.

        Raises BaselineError LG0702 or LG0703 for a file that cannot be read, LG0704 for one that was put there under
        another claim's name.
        """
        for owner in dict.fromkeys((claim, ANY_CLAIM)):
            path = self.path(name, owner, parameters)
            if path.exists():
                record = load_record(path)
                _require_claim(record, name, owner, path)
                require_parameters(record, parameters, path)
                return path
        return None

    def put(self, name: str, source: Path) -> Path:
        """Validate the record ``source`` and copy it to its place, over an earlier record of the same claim.

        Raises BaselineError (LG0701 to LG0704), StorageError LG0707.
        """
        data = read_bytes(source)
        record = parse_record(data, source).record
        _require_claim(record, name, record.claim, source)
        return write_bytes_atomically(self.path(name, record.claim, record.parameters), data)

    def names(self) -> tuple[str, ...]:
        """The baselines that have a folder, sorted."""
        if not self.root.is_dir():
            return ()
        return tuple(sorted(entry.name for entry in self.root.iterdir() if entry.is_dir()))

    def records(self, name: str | None = None) -> tuple[RecordInfo, ...]:
        """All records, or those of one baseline, in the order of their paths; damaged ones say so."""
        names = self.names() if name is None else (require_name(name),)
        return tuple(self._info(each, path) for each in names for path in self._files(each))

    def prune(self, name: str, keep: Collection[str]) -> tuple[Path, ...]:
        """Delete the records of a baseline whose claim is not in ``keep``, and return their paths.

        A record that cannot be read stays: nobody knows whose it is. Raises StorageError LG0707.
        """
        unwanted = self.unwanted(name, keep)
        for path in unwanted:
            try:
                path.unlink(missing_ok=True)
            except OSError as error:
                raise not_writable(path, error) from error
        return unwanted

    def unwanted(self, name: str, keep: Collection[str]) -> tuple[Path, ...]:
        """What ``prune`` would delete."""
        return tuple(info.path for info in self.records(name) if info.claim and info.claim not in keep)

    def _files(self, name: str) -> list[Path]:
        return sorted(path for path in (self.root / name).glob(f"*{SUFFIX}") if not path.name.startswith("."))

    def _info(self, name: str, path: Path) -> RecordInfo:
        try:
            record = load_record(path)
            _require_claim(record, name, record.claim, path)
        except BaselineError as error:
            return RecordInfo(name=name, path=path, problem=f"{error.code}: {error.found}")
        problem = None
        if path.name != record_name(record.claim, record.parameters):
            problem = "its file name is not that of its claim and parameters, so it is never found"
        return RecordInfo(
            name=name,
            path=path,
            claim=record.claim,
            created=record.created,
            sizes=record.parameters.get("sizes", {}),
            problem=problem,
        )


def _require_claim(record: BaselineRecord, name: str, claim: str, path: Path) -> None:
    pairs = (("baseline", record.name, name), ("claim", record.claim, claim))
    differences = [f"{what}: recorded {ours!r}, asked {theirs!r}" for what, ours, theirs in pairs if ours != theirs]
    if differences:
        raise other_parameters(path, differences)
