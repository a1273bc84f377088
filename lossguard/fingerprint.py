"""Fingerprints: the facts that make two runs comparable, and why a difference in one of them matters."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

from lossguard.errors import IntegrityError, UsageError
from lossguard.file_hashes import HashCache
from lossguard.host_facts import host_facts
from lossguard.model_facts import model_facts
from lossguard.records import require_finite

SCHEMA_VERSION = 1

WHY = {
    "target": "another target model has other best tokens: scores of the one say nothing about the other",
    "served": "the system serves other weights or another revision than the one that was recorded",
    "engine": "another engine, or other arguments of it, rounds and batches differently",
    "versions": "another version may choose other kernels, so near-ties fall differently",
    "device": "other devices and drivers run other kernels, with other rounding and other speed",
    "cpu": "numeric libraries choose their kernels by the CPU's instruction sets",
    "threads": "the number of threads decides how sums are split, and so their rounding",
    "environment": "this variable chooses kernels, thread counts or precision",
    "os": "other system libraries bring other kernels and mathematical functions",
    "python": "another Python runs other builds of every package",
}

HOST_GROUPS = ("versions", "device", "cpu", "threads", "environment")
TOLD_BY_ENGINE = "host facts told by the engine"


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """One identity fact in which two runs differ; None stands for a fact that is not there."""

    key: str
    a: Any
    b: Any
    why: str

    def __str__(self) -> str:
        return f"{self.key}: {self.a!r} against {self.b!r} ({self.why})"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fingerprint:
    """Facts under dotted keys such as ``versions.torch``; values are JSON.

    ``identity`` must agree for two runs to be comparable; ``measured`` is for explaining surprises. Raises
    ValueError for a value that JSON does not have.
    """

    identity: Mapping[str, Any]
    measured: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        require_finite(self.identity, "identity")
        require_finite(self.measured, "measured")

    @property
    def sha256(self) -> str:
        """Hash of the identity facts that are there: equal exactly for comparable fingerprints."""
        present = {key: value for key, value in self.identity.items() if value is not None}
        return hashlib.sha256(_canonical(present).encode()).hexdigest()

    def to_json(self) -> dict[str, Any]:
        """A JSON object; ``from_json`` is the inverse."""
        identity, measured = dict(self.identity), dict(self.measured)
        return {
            "schema_version": SCHEMA_VERSION,
            "sha256": self.sha256,
            "identity": identity,
            "measured": measured,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> Self:
        """Inverse of ``to_json``. Raises IntegrityError LG0106 for another form, LG0107 for changed facts."""
        if set(data) != {"schema_version", "sha256", "identity", "measured"}:
            raise _malformed(f"it has the fields {sorted(data)}")
        if data["schema_version"] != SCHEMA_VERSION:
            raise _malformed(f"its schema version is {data['schema_version']!r}, known is {SCHEMA_VERSION}")
        if not isinstance(data["identity"], Mapping) or not isinstance(data["measured"], Mapping):
            raise _malformed("identity and measured must be objects")
        read = cls(identity=data["identity"], measured=data["measured"])
        if read.sha256 != data["sha256"]:
            raise IntegrityError(
                "a recorded fingerprint does not have the hash that it states",
                why="its facts were changed after they were recorded, so it cannot tell which runs are comparable",
                fix="record the run again; never edit fingerprints.json",
                code="LG0107",
            )
        return read


def comparable(a: Fingerprint, b: Fingerprint) -> tuple[Difference, ...]:
    """The identity facts in which two runs differ, in the order of their keys; empty if they are comparable.

    A fact that one side lacks equals None, so that a later version may add facts about things that are not there.
    """
    return tuple(
        Difference(key=key, a=a.identity.get(key), b=b.identity.get(key), why=why_it_matters(key))
        for key in sorted(a.identity.keys() | b.identity.keys())
        if _canonical(a.identity.get(key)) != _canonical(b.identity.get(key))
    )


def why_it_matters(key: str) -> str:
    """One sentence for people about the group of a key."""
    return WHY.get(key.partition(".")[0], "runs that differ in it are not known to be comparable")


def collect_fingerprint(
    *,
    target: Path,
    engine: Mapping[str, Any],
    served: Path | None = None,
    served_revision: str | None = None,
    hashes: HashCache | None = None,
) -> Fingerprint:
    """The fingerprint of one system on this machine.

    ``target`` is the folder of the target model, ``engine`` what the engine's ``fingerprint()`` gave, ``served``
    the folder that the system itself serves where that is another one, ``served_revision`` a revision of its code.
    The engine's ``reasons`` (how it made its automatic choices) explain and do not identify. Its ``host``, where it
    has one, stands in place of this machine's facts: the replies come from there.
    Reads all weights unless ``hashes`` knows them. Raises UsageError LG0104, LG0108 or LG0109 (``host``),
    IntegrityError LG0101, LG0103 or LG0105, and StorageError LG0102.
    """
    cache = HashCache.default() if hashes is None else hashes
    own = {} if served is None else model_facts(served, cache)
    if served_revision is not None:
        own["revision"] = served_revision
    host, measured = host_facts()
    if "host" in engine:
        host = told_host(engine["host"])
        measured = {**measured, "host_source": TOLD_BY_ENGINE}
    own_reasons = {"reasons": engine["reasons"]} if "reasons" in engine else {}
    identity = {
        **_flat("target", model_facts(target, cache)),
        **_flat("served", own),
        **_flat("engine", {key: value for key, value in engine.items() if key not in ("reasons", "host")}),
        **host,
    }
    return Fingerprint(identity=identity, measured={**_flat("engine", own_reasons), **measured})


def told_host(host: object) -> dict[str, Any]:
    """What an engine says about the machine that made its replies, checked. Raises UsageError LG0109.

    Keys are those of ``host_facts`` with at least ``versions.torch`` and one of ``device.*``; values are JSON. Facts of
    the target or of the engine are never the engine's to replace.
    """
    if not isinstance(host, Mapping) or not host:
        raise _bad_host(f"is {host!r}")
    odd = sorted(str(key) for key in host if not isinstance(key, str) or not _is_host_key(key))
    if odd:
        raise _bad_host(f"has the keys {', '.join(odd)}, which are no facts of a machine")
    if host.get("versions.torch") is None or not any(key.startswith("device.") for key in host):
        raise _bad_host("says not both versions.torch and a device.* (device.names = [] for a machine without one)")
    try:
        require_finite(host, "host")
        _canonical(host)
    except (TypeError, ValueError) as error:
        raise _bad_host(f"holds what is no JSON ({error})") from error
    return dict(host)


def _is_host_key(key: str) -> bool:
    group, _, name = key.partition(".")
    return key in ("os", "python") or (group in HOST_GROUPS and bool(name))


def _bad_host(found: str) -> UsageError:
    return UsageError(
        f"the engine's fingerprint has a host that {found}",
        why="it stands in place of this machine's facts, so replies of unknown machines would count as comparable",
        fix="give the facts of the machine that served, as lossguard.host_facts.host_facts() names them, or no host",
        code="LG0109",
    )


def _flat(prefix: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    return dict(_leaves(prefix, facts))


def _leaves(prefix: str, facts: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in facts.items():
        if isinstance(value, Mapping):
            yield from _leaves(f"{prefix}.{key}", value)
        else:
            yield f"{prefix}.{key}", value


def _canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False, separators=(",", ":"))


def _malformed(what: str) -> IntegrityError:
    return IntegrityError(
        f"a recorded fingerprint cannot be read: {what}",
        why="without it nobody can tell whether two runs are comparable",
        fix="use the lossguard version that recorded it, or record the run again",
        code="LG0106",
    )
