"""A recording as one file: safetensors, with everything else as JSON under one key of its metadata.

Token ids are int16 where the vocabulary allows it (up to 32,768), else int32. Log-probabilities, edges and confidence
are float16, rounded to the nearest: at most 1 part in 2,048 off, and in the order in which they were. The hash covers
every array and every fact; files are replaced as a whole.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from lossguard.atomic_write import replace_file, require_replaceable
from lossguard_mechanisms.replay.failures import (
    cannot_write,
    inconsistent,
    no_recording,
    not_understood,
    other_content,
    unreadable,
)
from lossguard_mechanisms.replay.recording import Lattices, Provenance, Recording, Replies
from lossguard_mechanisms.replay.soundness import problems_of

SUFFIX = ".lattice.safetensors"
SCHEMA = "lossguard-lattice"
VERSION = 1
_KEY = "lattice"
_SMALL_VOCABULARY = 2**15
_NAMES = ("request_ids", "sets", "clusters")
_REPLY_ARRAYS = ("prompt_ids", "prompt_offsets", "reply_ids", "reply_offsets")
_ID_ARRAYS = ("prompt_ids", "reply_ids", "ids", "chain")
_NEEDED = (*_REPLY_ARRAYS, "ids", "log_probs", "chain")
_OPTIONAL = ("anchor_edges", "edges", "confidence")
_DTYPES: Mapping[str, tuple[str, ...]] = {
    **dict.fromkeys(_ID_ARRAYS, ("int16", "int32")),
    **dict.fromkeys(("prompt_offsets", "reply_offsets"), ("int64",)),
    **dict.fromkeys(("log_probs", *_OPTIONAL), ("float16",)),
}


def require_place(path: Path) -> None:
    """Raise StorageError LG1605 now if ``save_recording`` could not write there later."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        require_replaceable(path)
    except OSError as error:
        raise cannot_write(path, error) from error


def save_recording(path: Path, recording: Recording) -> None:
    """Write a recording. Raises IntegrityError LG1604 if its arrays do not fit, StorageError LG1605."""
    problems = problems_of(recording)
    if problems:
        raise inconsistent("to be written", problems)
    arrays = _arrays_of(recording)
    facts = _facts_of(recording)
    text = json.dumps({"sha256": _digest(facts, arrays), **facts}, ensure_ascii=True, separators=(",", ":"))
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, save(arrays, metadata={_KEY: text}))
    except OSError as error:
        raise cannot_write(path, error) from error


def load_recording(path: Path) -> Recording:
    """Read a recording and check all of it.

    Raises IntegrityError: LG1601 (not readable), LG1602 (other kind or version), LG1603 (other content than was
    written), LG1604 (arrays that do not fit each other).
    """
    text, arrays = _read(path)
    facts = _parsed(path, text)
    if facts.pop("sha256", None) != _digest(facts, arrays):
        raise other_content(path)
    recording = _recording_of(path, facts, arrays)
    problems = problems_of(recording)
    if problems:
        raise inconsistent(str(path), problems)
    return recording


def recording_paths(place: Path) -> tuple[Path, ...]:
    """The file itself, or the recordings in a folder by name. Raises UsageError LG1606 if there is none."""
    if place.is_file():
        return (place,)
    found = tuple(sorted(place.glob(f"*{SUFFIX}"))) if place.is_dir() else ()
    if not found:
        raise no_recording(place, SUFFIX)
    return found


def _arrays_of(recording: Recording) -> dict[str, np.ndarray]:
    replies, lattices = recording.replies, recording.lattices
    named = {name: getattr(replies, name) for name in _REPLY_ARRAYS}
    named |= {name: getattr(lattices, name) for name in ("ids", "log_probs", "chain", *_OPTIONAL)}
    id_dtype = np.int16 if recording.provenance.vocab_size <= _SMALL_VOCABULARY else np.int32
    return {
        name: np.ascontiguousarray(array.astype(id_dtype) if name in _ID_ARRAYS else array)
        for name, array in named.items()
        if array is not None
    }


def _facts_of(recording: Recording) -> dict[str, Any]:
    provenance = asdict(recording.provenance)
    return {
        "schema": SCHEMA,
        "version": VERSION,
        "provenance": provenance | {"notes": list(recording.provenance.notes)},
        **{name: list(getattr(recording.replies, name)) for name in _NAMES},
    }


def _digest(facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> str:
    digest = hashlib.sha256(json.dumps(facts, sort_keys=True, ensure_ascii=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name}:{array.dtype.str}:{'x'.join(map(str, array.shape))};".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _read(path: Path) -> tuple[str | None, dict[str, np.ndarray]]:
    if not path.is_file():
        raise unreadable(path, "there is no such file")
    try:
        with safe_open(path, framework="numpy") as file:
            metadata: Mapping[str, str] = file.metadata() or {}
            return metadata.get(_KEY), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except (OSError, SafetensorError, TypeError, AttributeError) as error:  # the last two: dtypes that numpy lacks
        raise unreadable(path, str(error)) from error


def _parsed(path: Path, text: str | None) -> dict[str, Any]:
    if text is None:
        raise not_understood(path, f"its metadata has no {_KEY!r}")
    try:
        facts = json.loads(text)
    except ValueError as error:
        raise not_understood(path, f"its metadata is no JSON ({error})") from error
    if not isinstance(facts, dict):
        raise not_understood(path, "its metadata is no JSON object")
    found = facts.get("schema"), facts.get("version")
    if found != (SCHEMA, VERSION):
        raise not_understood(path, f"it is {found[0]!r} version {found[1]!r}, this reads {SCHEMA!r} version {VERSION}")
    return facts


def _recording_of(path: Path, facts: Mapping[str, Any], arrays: Mapping[str, np.ndarray]) -> Recording:
    missing = [name for name in _NEEDED if name not in arrays]
    unknown = sorted(set(arrays) - set(_NEEDED) - set(_OPTIONAL))
    wrong = [name for name, array in arrays.items() if array.dtype.name not in _DTYPES.get(name, (array.dtype.name,))]
    if missing or unknown or wrong:
        raise not_understood(path, f"arrays missing {missing}, unknown {unknown}, of another type {wrong}")
    try:
        provenance = Provenance(**{**facts["provenance"], "notes": tuple(facts["provenance"]["notes"])})
        request_ids, sets, clusters = (tuple(map(str, facts[name])) for name in _NAMES)
    except (KeyError, TypeError) as error:
        raise not_understood(path, f"its facts are not complete ({type(error).__name__}: {error})") from error
    replies = Replies(
        request_ids=request_ids,
        sets=sets,
        clusters=clusters,
        prompt_ids=arrays["prompt_ids"].astype(np.int64),
        prompt_offsets=arrays["prompt_offsets"],
        reply_ids=arrays["reply_ids"].astype(np.int64),
        reply_offsets=arrays["reply_offsets"],
    )
    lattices = Lattices(
        ids=arrays["ids"].astype(np.int32),
        log_probs=arrays["log_probs"],
        chain=arrays["chain"].astype(np.int32),
        anchor_edges=arrays.get("anchor_edges"),
        edges=arrays.get("edges"),
        confidence=arrays.get("confidence"),
    )
    return Recording(provenance=provenance, replies=replies, lattices=lattices)
