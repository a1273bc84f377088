"""The stop check: stop strings, minimum lengths and ignored stop ids, as the served ids honour them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.events import FAIL_ALPHA, excess_p
from lossguard.checks.problems import blocked, inconclusive
from lossguard.checks.table_text import plural
from lossguard.records import CheckResult, FinishReason, Request, ServedOutput, Verdict

_LISTED = 20


class StopCheck:
    """What requests say about their own end, beyond what the structure check holds against every reply.

    Covered: a stop string that was passed over, or that the ids do not contain; a stop id where ``min_tokens`` forbids
    it, or a stop held back after it; a reply that ended at a stop id under ``ignore_eos``.
    Not covered: finish reasons, lengths and stop ids in general (structure); stop strings that straddle the prompt.
    """

    name: str = "stop"
    covers: str = "stop strings, min_tokens and ignore_eos, by the served ids"
    does_not_cover: str = "ends that the structure check judges; stop strings that begin in the prompt"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Requests of which one asks for any of the three, greedy or sampled."""
        return any(_asks(request) for request in requests)

    def run(self, given: CheckInput) -> CheckResult:
        """FAIL where the candidate has violations and stock none or significantly fewer, else INCONCLUSIVE if any."""
        if (reason := blocked(self.name, given)) is not None:
            return reason
        for arm in (given.candidate, given.stock):
            if (problem := _undecoded(given.requests, arm)) is not None:
                return inconclusive(self.name, problem)
        ours, theirs = (dict(_violations(given, arm)) for arm in (given.candidate, given.stock))
        return _result(given, ours, theirs)


def _asks(request: Request) -> bool:
    asked = request.sampling
    return bool(asked.stop_strings or asked.min_tokens or asked.ignore_eos)


def _undecoded(requests: Sequence[Request], arm: Arm) -> str | None:
    """Why stop strings cannot be looked for in an arm; None if they can."""
    wanted = [at for at, request in enumerate(requests) if request.sampling.stop_strings]
    if all(at < len(arm.stop_texts) and arm.stop_texts[at] is not None for at in wanted):
        return None
    return f"{arm.name}: the ids of replies with stop strings were not detokenised"


def _violations(given: CheckInput, arm: Arm) -> Iterator[tuple[str, str]]:
    """(request, what is wrong) for every reply that ends otherwise than asked, the first thing of each."""
    for index, (request, output) in enumerate(zip(given.requests, arm.outputs, strict=True)):
        text = arm.stop_texts[index] if index < len(arm.stop_texts) else None
        found = (
            _passed_over(request, output, text)
            or _too_early(request, output)
            or _not_ignored(request, output)
            or _held_back(given, arm, index)
        )
        if found is not None:
            yield request.id, found


def _passed_over(request: Request, output: ServedOutput, text: tuple[str, str] | None) -> str | None:
    """Only the last token may complete a stop string; ``text`` is that of all ids, and of all but the last."""
    if text is None:
        return None
    whole, before = text
    for string in request.sampling.stop_strings:
        if string in before:
            return f"goes on after the stop string {string!r} ({before.partition(string)[2][:20]!r})"
    reason = output.stop_reason
    if isinstance(reason, str) and reason in request.sampling.stop_strings and reason not in whole:
        return f"stopped by {reason!r}, which its ids do not contain"
    return None


def _ends_at_stop_id(request: Request, output: ServedOutput) -> bool:
    stops = request.sampling.stop_ids
    return output.finish_reason is FinishReason.STOP and bool(output.ids) and output.ids[-1] in stops


def _too_early(request: Request, output: ServedOutput) -> str | None:
    """The stop id is the token after the minimum at the earliest; fewer tokens yet are the structure check's."""
    asked = request.sampling
    is_early = _ends_at_stop_id(request, output) and len(output.ids) == asked.min_tokens and not asked.ignore_eos
    return f"stop id {output.ids[-1]} is one of the {asked.min_tokens} tokens of min_tokens" if is_early else None


def _not_ignored(request: Request, output: ServedOutput) -> str | None:
    is_wrong = request.sampling.ignore_eos and _ends_at_stop_id(request, output)
    return f"stopped at {output.ids[-1]} although ignore_eos was asked for" if is_wrong else None


def _held_back(given: CheckInput, arm: Arm, index: int) -> str | None:
    """After the minimum, the target's best is a stop id by more than the event threshold, and the reply goes on."""
    asked, scores = given.requests[index].sampling, arm.scores
    if not asked.min_tokens or asked.ignore_eos:
        return None
    first, end = int(scores.offsets[index]) + asked.min_tokens, int(scores.offsets[index + 1])
    for at in range(first, end):
        if (
            scores.finite[at]
            and scores.gap[at] > given.thresholds.event_nats
            and int(scores.best_id[at]) in asked.stop_ids
        ):
            position = at - int(scores.offsets[index])
            return (
                f"goes on at position {position}, {scores.gap[at]:.2f} nats under a stop, min_tokens {asked.min_tokens}"
            )
    return None


def _result(given: CheckInput, ours: dict[str, str], theirs: dict[str, str]) -> CheckResult:
    asking = sum(_asks(request) for request in given.requests)
    verdict, summary = Verdict.PASS, f"{plural(asking, 'request')} with stops of their own"
    if ours:
        is_more = not theirs or excess_p(len(ours), len(theirs), len(given.requests)) < FAIL_ALPHA
        verdict = Verdict.FAIL if is_more else Verdict.INCONCLUSIVE
        summary = f"{plural(len(ours), 'reply')} of {asking}: {next(iter(ours.values()))} (stock {len(theirs)})"
    evidence: dict[str, Any] = {
        "num_asking_requests": asking,
        "num_violating_requests": len(ours),
        "num_stock_violating_requests": len(theirs),
        "examples": [{"request_id": key, "detail": text} for key, text in list(ours.items())[:_LISTED]],
    }
    return CheckResult(
        check="stop",
        verdict=verdict,
        summary=summary,
        candidate=str(len(ours)),
        stock=str(len(theirs)),
        limit="0",
        evidence=evidence,
        notes=tuple(f"request {key}: {text}" for key, text in list(ours.items())[:5]),
    )
