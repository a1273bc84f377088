"""Errors of this package, each in one place (docs/errors/replay.md)."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from lossguard.errors import IntegrityError, StorageError, UsageError, near_miss


def unreadable(path: Path, problem: str) -> IntegrityError:
    """A file that is missing, cut short or no safetensors file."""
    return IntegrityError(
        f"the recording {path} cannot be read: {problem}",
        why="a part of a recording would give the tokens per step of something else",
        fix="copy the file again, or record it anew with lossguard lattice record",
        code="LG1601",
    )


def not_understood(path: Path, problem: str) -> IntegrityError:
    """A safetensors file of another kind or version."""
    return IntegrityError(
        f"{path} is no recording that this version reads: {problem}",
        why="guessing at a format would give numbers about something else",
        fix="update lossguard if the file is newer; else give a file that lossguard lattice record has written",
        code="LG1602",
    )


def other_content(path: Path) -> IntegrityError:
    """Bytes that are not those that were written."""
    return IntegrityError(
        f"the recording {path} does not have the content that its hash names",
        why="a changed token or probability changes the tokens per step without a trace",
        fix="copy the file again, or record it anew with lossguard lattice record",
        code="LG1603",
    )


def inconsistent(place: str, problems: Iterable[str]) -> IntegrityError:
    """Arrays that do not fit each other."""
    return IntegrityError(
        f"the recording {place} contradicts itself: {'; '.join(problems)}",
        why="replay walks tokens and candidates side by side, so each must have its place",
        fix="record it anew with lossguard lattice record; a drafter of your own must keep to the lattice's contract",
        code="LG1604",
    )


def cannot_write(path: Path, error: OSError) -> StorageError:
    """No space left, or no permission."""
    return StorageError(
        f"{path} cannot be written: {error.strerror or error}",
        why="what was measured is lost when the command ends; what stood at that place before is intact",
        fix="make room or choose another place, and run the same command again",
        code="LG1605",
    )


def no_recording(place: Path, suffix: str) -> UsageError:
    """A place without any recording."""
    return UsageError(
        f"{place} holds no recording: no file named *{suffix} is there",
        why="replay needs the lattices that a drafter once gave",
        fix="give such a file or a folder with some; lossguard lattice record makes one",
        code="LG1606",
    )


def unknown_policy(name: str, known: Iterable[str]) -> UsageError:
    """A policy that does not exist."""
    return UsageError(
        f"unknown policy {name!r}",
        why="a policy that is left out would be missing from the comparison",
        fix=f"name one of the policies. {near_miss(name, known)}",
        code="LG1607",
    )


def no_edges(policy: str, drafter: str) -> UsageError:
    """A policy on edges asked of a recording without any."""
    return UsageError(
        f"the policy {policy!r} needs edges, and the recording of {drafter} has none",
        why="without edges its tree would be that of another policy under its name",
        fix="leave that policy out for this recording, or record a drafter that scores pairs of candidates",
        code="LG1608",
    )


def bad_nodes(text: str) -> UsageError:
    """Budgets that are no whole numbers above zero."""
    return UsageError(
        f"--nodes {text!r} is no list of node budgets",
        why="a budget is the number of drafted tokens that one step may verify",
        fix="give whole numbers from 1 to 4096 with commas between them, such as --nodes 8,16,32,64",
        code="LG1609",
    )


def unusable_replies(problem: str) -> UsageError:
    """Prompts or replies that cannot be recorded."""
    return UsageError(
        f"these replies cannot be recorded: {problem}",
        why="a lattice is recorded at every position of a reply, from its prompt on",
        fix="give prompts of at least two tokens with replies of at least one, that fit the target's context",
        code="LG1610",
    )


def foreign_replies(share: float, least: float) -> UsageError:
    """Greedy replies that the target itself would not have given."""
    return UsageError(
        f"the target would have chosen only {100 * share:.1f} % of the reply tokens, under {100 * least:.0f} %",
        why="replies of another model say nothing about how often this target accepts a draft",
        fix="give the target that served the run, or record replies of its own by leaving --run out",
        code="LG1611",
    )


def unusable_run(folder: Path, problem: str) -> UsageError:
    """A run folder without replies that can be used."""
    return UsageError(
        f"the replies in {folder} cannot be recorded: {problem}",
        why="all replies of a recording must come from one way of sampling without further constraints",
        fix="name a system of the run with --system, of a run with plain greedy or seeded sampling",
        code="LG1612",
    )


def missing_package(name: str) -> UsageError:
    """torch is not installed."""
    return UsageError(
        f"the package {name!r} is not installed",
        why="recording runs the target and the drafter; replaying a recording needs neither",
        fix="pip install 'lossguard[transformers]'",
        code="LG1613",
    )


def bad_option(problem: str) -> UsageError:
    """An option whose value does not fit the drafter or the device."""
    return UsageError(
        f"the recording cannot be made as asked: {problem}",
        why="a value that is changed in silence would give a recording of something else",
        fix="correct that option; lossguard lattice record --help lists them",
        code="LG1614",
    )


def other_weights(what: str, folder: Path) -> UsageError:
    """A model folder that is not the one that was recorded."""
    return UsageError(
        f"{folder} does not hold the {what} of this recording: its weights have another hash",
        why="another model takes other steps, and a difference would say nothing about replay",
        fix="give the folder that was recorded, or record this one",
        code="LG1615",
    )


def partly_recorded(policy: str, num_candidates: int, num_edge_candidates: int) -> UsageError:
    """A tree on a recording that lacks candidates or pairs which the engine's drafter names."""
    return UsageError(
        f"the recording keeps {num_candidates} candidates and pairs of {num_edge_candidates}, not all of the drafter's",
        why=f"the engine's {policy} trees would take nodes that replay cannot know",
        fix="record without --candidates and --edges, or compare the chain",
        code="LG1616",
    )
