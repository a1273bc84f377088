"""Judging: checks over aligned arms, and the evidence that a claim carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, cast

from lossguard.checks.base import Check, CheckInput, has_evidence
from lossguard.checks.describe import describe_run
from lossguard.checks.problems import all_greedy
from lossguard.checks.registry import asked_checks, builtin_checks
from lossguard.checks.support import outside_places
from lossguard.diagnosis.diagnose import diagnose
from lossguard.figures.collect import collect_figures
from lossguard.records import Claim, Evidence, Verdict
from lossguard.stages.divergence import Reader

MAX_EXAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What to judge, and what the report should say beside it."""

    given: CheckInput
    power: Mapping[str, Any]
    decode: Callable[..., str]  # token ids as text, for people


def judge(judgement: Judgement) -> Claim:
    """Run every check that applies."""
    given = judgement.given
    checks = [*builtin_checks(), *asked_checks(given), *_contributed_checks()]
    applied = [check for check in checks if check.applies(given.requests) and has_evidence(check, given)]
    results = [check.run(given) for check in applied]
    verdict = Verdict.combine([result.verdict for result in results])
    evidence = Evidence(
        checks=tuple(results),
        sizes=describe_run(given),
        power=judgement.power,
        examples=tuple(_examples(given, judgement.decode)),
        covers=tuple(f"{check.name}: {check.covers}" for check in applied),
        does_not_cover=tuple(_not_covered(given, {check.name for check in applied})),
        diagnosis=diagnose(given, results) if verdict is Verdict.FAIL and all_greedy(given.requests) else None,
        figures=collect_figures(given, judgement.power),
    )
    return Claim(
        id=f"{given.candidate.name}/lossless",
        candidate=given.candidate.name,
        baseline=given.stock.name,
        verdict=verdict,
        evidence=evidence,
    )


def _contributed_checks() -> list[Check]:
    """Checks of other packages: entry points of the group ``lossguard.checks`` are factories without arguments."""
    return [cast(Check, point.load()()) for point in sorted(entry_points(group="lossguard.checks"))]


def _not_covered(given: CheckInput, applied: Set[str]) -> list[str]:
    requests = given.requests
    longest_prompt = max(len(request.prompt_ids) for request in requests)
    longest_reply = max(len(output.ids) for output in given.candidate.outputs)
    greedy = all_greedy(requests)
    return [
        "temperature > 0 (add --temperature)" if greedy else "greedy decoding (leave --temperature out)",
        *_not_reported(applied),
        "tool calls" if "parameters" in applied else "grammars, penalties and tool calls",
        f"prompts over {longest_prompt:,} tokens, replies over {longest_reply:,}",
    ]


def _not_reported(applied: Set[str]) -> list[str]:
    """What servers report beside the tokens, as far as no check looked at it."""
    names = (("logprob", "reported logprobs"), ("usage", "usage"), ("text", "text"))
    *first, last = ["", *(what for check, what in names if check not in applied)]
    listing = ", ".join(first[1:])
    return [" and ".join(filter(None, (listing, last)))] if last else []


def _examples(given: CheckInput, decode: Callable[..., str]) -> list[dict[str, Any]]:
    """Unexplained events first, then first divergences, then the largest other gaps; at most ten.

    Of sampled replies: the tokens farthest outside their support.
    """
    arm = given.candidate
    reader = Reader(arm=arm, stock=given.stock, decode=decode)
    if not all_greedy(given.requests):
        return [reader.example(index, position, "mismatch") for index, position in outside_places(given, MAX_EXAMPLES)]
    shown = (event for event in arm.audit if event.explained is not True and not event.reason.startswith("after an"))
    events = sorted(shown, key=lambda event: (event.explained is None, -event.gap_nats))
    index_of = {request.id: index for index, request in enumerate(given.requests)}
    rows = [reader.example(index_of[event.request_id], event.position, "event") for event in events[:MAX_EXAMPLES]]
    for row, event in zip(rows, events, strict=False):
        row["replays"] = dict(event.replays)
    taken = {(row["request_id"], row["position"]) for row in rows}
    for index, position in _first_divergences(given):
        if len(rows) >= MAX_EXAMPLES:
            break
        if (arm.outputs[index].request_id, position) not in taken:
            rows.append(reader.example(index, position, "first_divergence"))
    return rows


def _first_divergences(given: CheckInput) -> list[tuple[int, int]]:
    """(request index, position) where the candidate first differs from stock, largest gap first."""
    found = []
    for index, (ours, theirs) in enumerate(zip(given.candidate.outputs, given.stock.outputs, strict=True)):
        shared = min(len(ours.ids), len(theirs.ids))
        position = next((at for at in range(shared) if ours.ids[at] != theirs.ids[at]), None)
        if position is not None:
            at = int(given.candidate.scores.offsets[index]) + position
            found.append((float(given.candidate.scores.gap[at]), index, position))
    return [(index, position) for _, index, position in sorted(found, key=lambda row: (-row[0], row[1]))]
