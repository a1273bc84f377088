"""The structure check: every reply ends where and as its request says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.problems import inconclusive
from lossguard.checks.table_text import plural
from lossguard.records import CheckResult, FinishReason, Request, ServedOutput, Verdict

_LISTED = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Violation:
    """One broken rule in one reply."""

    request_id: str
    rule: str
    detail: str


class StructureCheck:
    """Finish reasons, lengths, stop ids and id range of every reply.

    Covered: early or late stops, wrong finish reasons, dropped or extra tokens, empty and aborted replies, ids that
    the model does not have.
    Not covered: which token was chosen (the other checks); with ignore_eos, where a reply should have stopped.
    """

    name: str = "structure"
    covers: str = "ends of replies: finish reason, length, stop ids, id range"
    does_not_cover: str = "the text before the end; stop ids under ignore_eos"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Greedy and sampled requests alike."""
        return bool(requests)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL on any violation of the candidate; stock's are counted beside it."""
        if len(given.candidate.outputs) != len(given.requests):
            return inconclusive(
                self.name, f"{plural(len(given.candidate.outputs), 'reply')} for {len(given.requests)} requests"
            )
        found = violations(given.requests, given.candidate, given.vocab_size)
        num_stock = len({item.request_id for item in violations(given.requests, given.stock, given.vocab_size)})
        return _result(given, found, num_stock)


def violations(requests: Sequence[Request], arm: Arm, vocab_size: int) -> list[Violation]:
    """Every broken rule of every reply, in request order."""
    found: list[Violation] = []
    for request, output in zip(requests, arm.outputs, strict=False):
        found += _violations_of(request, output, vocab_size)
    return found


def _violations_of(request: Request, output: ServedOutput, vocab_size: int) -> list[Violation]:
    broken = [*_end_rules(request, output), *_content_rules(request, output, vocab_size)]
    return [Violation(request_id=request.id, rule=rule, detail=detail) for rule, detail in broken]


def _end_rules(request: Request, output: ServedOutput) -> list[tuple[str, str]]:
    asked, number = request.sampling, len(output.ids)
    broken = []
    if output.finish_reason is FinishReason.ABORT:
        broken.append(("abort", f"aborted after {number} tokens ({output.stop_reason})"))
    if output.finish_reason is FinishReason.LENGTH and number != asked.max_tokens:
        broken.append(("length", f"finish 'length' after {number} tokens, max_tokens is {asked.max_tokens}"))
    if number > asked.max_tokens:
        broken.append(("max_tokens", f"{number} tokens, max_tokens is {asked.max_tokens}"))
    if output.finish_reason is FinishReason.STOP:
        if number < asked.min_tokens:
            broken.append(("min_tokens", f"stopped after {number} tokens, min_tokens is {asked.min_tokens}"))
        stopped_by_string = isinstance(output.stop_reason, str) and output.stop_reason in asked.stop_strings
        if number and output.ids[-1] not in asked.stop_ids and not stopped_by_string:
            broken.append(("stop", f"finish 'stop' at id {output.ids[-1]}, which is no stop id"))
        if number and not stopped_by_string and output.stop_reason not in (None, output.ids[-1]):
            broken.append(("stop-reason", f"stop reason {output.stop_reason!r} is not what ended the reply"))
    return broken


def _content_rules(request: Request, output: ServedOutput, vocab_size: int) -> list[tuple[str, str]]:
    broken = []
    if output.request_id != request.id:
        broken.append(("request", f"the reply answers {output.request_id!r}"))
    if not output.ids:
        broken.append(("empty", "no token"))
    if not request.sampling.ignore_eos:
        stops = set(request.sampling.stop_ids)
        early = next((at for at, token in enumerate(output.ids[:-1]) if token in stops), None)
        if early is not None:
            after = len(output.ids) - 1 - early
            broken.append(("after-stop", f"{plural(after, 'token')} after stop id {output.ids[early]} at {early}"))
    outside = [at for at, token in enumerate(output.ids) if not 0 <= token < vocab_size]
    if outside:
        detail = f"id {output.ids[outside[0]]} at position {outside[0]}, vocabulary has {vocab_size}"
        broken.append(("vocabulary", detail))
    return broken


def _result(given: CheckInput, found: Sequence[Violation], num_stock: int) -> CheckResult:
    num_requests = len({item.request_id for item in found})
    by_rule: dict[str, int] = {}
    for item in found:
        by_rule[item.rule] = by_rule.get(item.rule, 0) + 1
    rules = ", ".join(f"{rule} {number}" for rule, number in sorted(by_rule.items()))
    summary = plural(len(given.requests), "stop") + " checked"
    if found:
        summary = f"{plural(num_requests, 'reply')} of {len(given.requests)} broken: {rules} (stock {num_stock})"
    evidence: dict[str, Any] = {
        "num_requests": len(given.requests),
        "num_violating_requests": num_requests,
        "num_stock_violating_requests": num_stock,
        "violations_by_rule": dict(sorted(by_rule.items())),
        "examples": [
            {"request_id": item.request_id, "rule": item.rule, "detail": item.detail} for item in found[:_LISTED]
        ],
    }
    return CheckResult(
        check="structure",
        verdict=Verdict.FAIL if found else Verdict.PASS,
        summary=summary,
        candidate=str(num_requests),
        stock=str(num_stock),
        limit="0",
        evidence=evidence,
        notes=tuple(f"request {item.request_id}: {item.detail}" for item in found[:5]),
    )
