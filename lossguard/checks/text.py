"""The text check: does the text of a reply say what its ids say, and are there ids at all?"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.problems import blocked, inconclusive
from lossguard.checks.table_text import plural
from lossguard.records import CheckResult, Request, ServedOutput, Verdict

TEXT_LEVEL = "text_level"
"""Telemetry column: 1 where the engine gave text only, and ids were made from it (stages/serving.py sets it)."""
UNFINISHED = "\ufffd"
"""What a detokeniser puts for a character whose last bytes are still to come."""
_LISTED = 20


class TextCheck:
    """Reply text against the ids, detokenised by the target's own tokenizer. Text without ids is never a PASS.

    Covered: text that lacks a part, has one twice, or belongs to other tokens; replies known only as text, whose ids
    were cut from it and need not be those that the server chose.
    Not covered: leading white space, and an unfinished character at the end.
    """

    name: str = "text"
    covers: str = "reply text against the detokenised ids; replies known only as text"
    does_not_cover: str = "leading white space; an unfinished character at the end of a reply"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy and sampled requests alike."""
        return bool(requests)

    def has_evidence(self, given: CheckInput) -> bool:
        """Whether any reply came with text, or as nothing but text."""
        arms = (given.candidate, given.stock, given.calibration)
        has_text = any(output.text is not None for arm in arms[:2] for output in arm.outputs)
        return has_text or any(num_text_level(arm) for arm in arms)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL where the candidate's text differs from its ids and stock's never does; text alone is INCONCLUSIVE."""
        if (reason := blocked(self.name, given)) is not None:
            return reason
        found = [(arm.name, num_text_level(arm)) for arm in (given.candidate, given.stock, given.calibration)]
        if any(number for _, number in found):
            listing = ", ".join(f"{name} {number}" for name, number in found if number)
            cut = f"text-level evidence: replies whose ids were cut from their text by lossguard ({listing})"
            return inconclusive(self.name, cut)
        for arm in (given.candidate, given.stock):
            if len(arm.decoded) != len(arm.outputs):
                return inconclusive(self.name, f"{arm.name}: its ids were not detokenised")
        ours, theirs = (_different(given.requests, arm) for arm in (given.candidate, given.stock))
        missing = sum(output.text is None for output in given.candidate.outputs)
        if missing and all(output.text is not None for output in given.stock.outputs):
            ours.append(("", f"{plural(missing, 'reply')} without text, stock's all have it"))
        return _result(given, ours, theirs)


def num_text_level(arm: Arm) -> int:
    """Replies of an arm that are known only as text."""
    return sum(1 for output in arm.outputs if any(output.telemetry.get(TEXT_LEVEL, ())))


def _different(requests: Sequence[Request], arm: Arm) -> list[tuple[str, str]]:
    """(request, how its text differs) for every reply whose text is not what its ids say."""
    rows = zip(requests, arm.outputs, arm.decoded, strict=False)
    found = [(request.id, text_difference(output, decoded)) for request, output, decoded in rows]
    return [(request_id, text) for request_id, text in found if text is not None]


def text_difference(output: ServedOutput, decoded: str | None) -> str | None:
    """How a reply's text differs from its detokenised ids; None if it does not, or if there is none."""
    if output.text is None or decoded is None:
        return None
    text, expected = _comparable(output.text), _comparable(decoded)
    allowed = {expected}
    if isinstance(output.stop_reason, str) and output.stop_reason:  # the text may end before the string, or with it
        head, stop, _ = expected.partition(output.stop_reason)
        allowed |= {_comparable(head), _comparable(head + stop)}
    if text in allowed:
        return None
    at = next(
        (at for at, (a, b) in enumerate(zip(text, expected, strict=False)) if a != b), min(len(text), len(expected))
    )
    return f"from character {at}: text {text[at : at + 20]!r}, ids {expected[at : at + 20]!r}"


def _comparable(text: str) -> str:
    return text.lstrip().rstrip(UNFINISHED)


def _result(given: CheckInput, ours: Sequence[tuple[str, str]], theirs: Sequence[tuple[str, str]]) -> CheckResult:
    summary, verdict = f"{plural(len(given.requests), 'reply')} read", Verdict.PASS
    if ours:
        verdict = Verdict.INCONCLUSIVE if theirs else Verdict.FAIL
        summary = f"{plural(len(ours), 'reply')} whose text is not what its ids say (stock {len(theirs)})"
    evidence: dict[str, Any] = {
        "num_different_requests": len(ours),
        "num_stock_different_requests": len(theirs),
        "examples": [{"request_id": request_id, "detail": text} for request_id, text in ours[:_LISTED]],
    }
    return CheckResult(
        check="text",
        verdict=verdict,
        summary=summary,
        candidate=str(len(ours)),
        stock=str(len(theirs)),
        limit="0",
        evidence=evidence,
        notes=tuple(f"request {request_id}: {text}" for request_id, text in ours[:5]),
    )
