"""What the page shows of one claim, as values that the template prints: JSON in, texts out."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lossguard.report.html.answers import decisive, first_note, sure
from lossguard.report.html.figures import Figure, figures_of
from lossguard.report.verdict_text import by_severity, claim_headline, recheck_command, visible

Json = Mapping[str, Any]
NUM_NOTES = 30
TOKEN_CHARACTERS = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A token that the target might have served at a position."""

    token: str
    text: str
    gap: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Divergence:
    """One position: what was served there, and what else there was."""

    place: str
    context: str
    served: Candidate
    best: Candidate
    stock: Candidate | None
    alternatives: tuple[Candidate, ...]
    replays: tuple[str, ...]
    command: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckRow:
    """One check of the table."""

    name: str
    verdict: str
    numbers: tuple[str, str, str, str]  # candidate, stock, bound, limit
    summary: str
    notes: tuple[str, ...]
    num_more_notes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """One claim."""

    anchor: str
    id: str
    verdict: str
    headline: str
    decisive: tuple[tuple[str, str], ...]  # check, what it found; of a PASS one row for all
    deciding: str  # the same in names alone
    where: str
    first_place: str  # the same, short
    sure: str
    family: str
    signs: str  # what speaks for the family
    sizes: str
    checks: tuple[CheckRow, ...]
    covers: tuple[str, ...]
    does_not_cover: tuple[str, ...]
    divergences: tuple[Divergence, ...]
    figures: tuple[Figure, ...]
    differences: tuple[str, ...]


def sections_of(report: Json) -> tuple[Section, ...]:
    """Claims, worst first."""
    differences = report["fingerprint"].get("differences", {})
    return tuple(
        section_of(claim, report["run"], differences.get(claim["candidate"], ()), number)
        for number, claim in enumerate(by_severity(report["claims"]), 1)
    )


def section_of(claim: Json, run: Json, differences: Sequence[str], number: int) -> Section:
    """One claim of a run; ``number`` is its place on the page, ``differences`` are those of the fingerprints."""
    divergences = tuple(_divergence(run, claim, example) for example in claim["examples"])
    signs, _, family = claim.get("diagnosis", {}).get("sentence", "").rpartition("; likely family: ")
    return Section(
        anchor=f"claim-{number}",
        id=claim["id"],
        verdict=claim["verdict"],
        headline=claim_headline(claim),
        decisive=decisive(claim),
        deciding=", ".join(name for name, _ in decisive(claim)),
        where=_where(claim, divergences),
        first_place=divergences[0].place if divergences and claim["verdict"] != "PASS" else first_note(claim),
        sure=sure(claim),
        family=family,
        signs=signs,
        sizes=_sizes(claim["sizes"]),
        checks=tuple(_check(check) for check in by_severity(claim["checks"])),
        covers=tuple(claim["covers"]),
        does_not_cover=tuple(claim["does_not_cover"]),
        divergences=divergences,
        figures=figures_of(claim, f"c{number}"),
        differences=tuple(differences),
    )


def _where(claim: Json, divergences: Sequence[Divergence]) -> str:
    """The first place of a red claim in one sentence."""
    if claim["verdict"] == "PASS" or not divergences:
        return first_note(claim)
    first = divergences[0]
    sentence = f"{first.place}: served {first.served.token} “{first.served.text}”, {first.served.gap}"
    stock = f"; stock's own decode there gives {', '.join(first.replays)}" if first.replays else ""
    return f"{sentence}; best {first.best.token} “{first.best.text}”{stock}"


def _sizes(sizes: Json) -> str:
    if not sizes:
        return ""
    return (
        f"{sizes['num_requests']:,} requests in {sizes['num_clusters']:,} clusters; "
        f"{sizes['num_tokens_candidate']:,} tokens of the candidate, {sizes['num_tokens_stock']:,} of stock; "
        f"{100 * sizes['diverging_fraction']:.0f} % of requests diverge"
    )


def _check(check: Json) -> CheckRow:
    notes = check["notes"]
    return CheckRow(
        name=check["check"],
        verdict=check["verdict"],
        numbers=(check.get("candidate", ""), check.get("stock", ""), check.get("bound", ""), check.get("limit", "")),
        summary=check["summary"],
        notes=tuple(notes[:NUM_NOTES]),
        num_more_notes=max(0, len(notes) - NUM_NOTES),
    )


def _divergence(run: Json, claim: Json, example: Json) -> Divergence:
    gap = "no such token in the vocabulary" if example["gap_nats"] is None else f"gap {example['gap_nats']:.2f} nats"
    stock = None
    if "stock_id" in example:
        stock = _token(example["stock_id"], example["stock_text"])
    return Divergence(
        place=f"request {example['request_id']}, position {example['position']:,}",
        context=example.get("context_text", ""),
        served=_token(example["served_id"], example.get("served_text", ""), gap),
        best=_token(example["best_id"], example.get("best_text", "")),
        stock=stock,
        alternatives=tuple(
            _token(row["id"], row["text"], f"{row['gap_nats']:.2f}") for row in example.get("alternatives", ())
        ),
        replays=tuple(f"{name}: {token}" for name, token in (example.get("replays") or {}).items()),
        command=recheck_command(claim, run, example),
    )


def _token(token: int, text: str, gap: str = "") -> Candidate:
    return Candidate(token=str(token), text=visible(text, TOKEN_CHARACTERS), gap=gap)
