"""Judging: checks over aligned arms, and the evidence that a claim carries."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from dataclasses import dataclass
from importlib.metadata import entry_points
from typing import Any, cast

import numpy as np

from lossguard.checks.base import Arm, Check, CheckInput, has_evidence
from lossguard.checks.describe import describe_run
from lossguard.checks.problems import all_greedy
from lossguard.checks.registry import asked_checks, builtin_checks
from lossguard.checks.support import outside_places
from lossguard.diagnosis.diagnose import diagnose
from lossguard.records import Claim, Evidence, Verdict

MAX_EXAMPLES = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What to judge, and what the report should say beside it."""

    given: CheckInput
    power: Mapping[str, Any]
    decode: Callable[[int], str]  # a token id as text, for people


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


def _examples(given: CheckInput, decode: Callable[[int], str]) -> list[dict[str, Any]]:
    """Unexplained events first, then first divergences, then the largest other gaps; at most ten.

    Of sampled replies: the tokens farthest outside their support.
    """
    arm = given.candidate
    if not all_greedy(given.requests):
        return [
            _example(arm, index, position, "mismatch", decode)
            for index, position in outside_places(given, MAX_EXAMPLES)
        ]
    shown = (event for event in arm.audit if event.explained is not True and not event.reason.startswith("after an"))
    events = sorted(shown, key=lambda event: (event.explained is None, -event.gap_nats))
    index_of = {request.id: index for index, request in enumerate(given.requests)}
    rows = [_example(arm, index_of[event.request_id], event.position, "event", decode) for event in events]
    for row, event in zip(rows, events, strict=True):
        row["replays"] = dict(event.replays)
    taken = {(row["request_id"], row["position"]) for row in rows}
    for index, position in _first_divergences(given):
        row = _example(arm, index, position, "first_divergence", decode)
        if (row["request_id"], position) not in taken:
            rows.append(row)
    return rows[:MAX_EXAMPLES]


def _example(arm: Arm, index: int, position: int, kind: str, decode: Callable[[int], str]) -> dict[str, Any]:
    scores, at = arm.scores, int(arm.scores.offsets[index]) + position
    gap = float(scores.gap[at])
    served, best = int(scores.served_id[at]), int(scores.best_id[at])
    return {
        "kind": kind,
        "request_id": arm.outputs[index].request_id,
        "position": position,
        "served_id": served,
        "served_text": decode(served),
        "best_id": best,
        "best_text": decode(best),
        "gap_nats": gap if np.isfinite(gap) else None,
    }


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
