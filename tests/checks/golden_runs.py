"""Small runs that reach every sentence and number of the checks; ``python -m tests.checks.golden_runs`` keeps them.

What the checks said of these runs is kept in ``golden.json``. A change there is a change of what users read: look at it
before it is kept anew.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.calibrate import CalibrationInput, calibrate
from lossguard.checks.describe import describe_run
from lossguard.checks.power import PowerInput, estimate_power
from lossguard.checks.registry import asked_checks, builtin_checks
from lossguard.errors import UsageError
from lossguard.records import FinishReason, ForcedScores, Request, ServedOutput
from tests.checks.simulated_arms import (
    STOP_ID,
    ArmSpec,
    beta_shares,
    check_input,
    make_arm,
    make_requests,
    thresholds,
    with_events,
    with_logprobs,
)

PATH = Path(__file__).with_name("golden.json")
NUM_REQUESTS = 204


def arms(seed: int, number: int = NUM_REQUESTS, rates: tuple[float, float] = (0.01, 0.01)) -> CheckInput:
    """Candidate and stock with 8 to 20 tokens a reply, and mismatch rates."""
    generator = np.random.default_rng(seed)
    requests = make_requests(number)
    candidate, stock = (
        make_arm(
            generator,
            requests,
            ArmSpec(
                name=name,
                lengths=generator.integers(8, 20, size=number),
                shares=beta_shares(generator, number, rate, 0.02),
            ),
        )
        for name, rate in zip(("candidate", "stock"), rates, strict=True)
    )
    return check_input(requests, candidate, stock, thresholds(margin=0.02))


def _with_scores(given: CheckInput, **columns: Any) -> CheckInput:
    return replace(given, candidate=replace(given.candidate, scores=replace(given.candidate.scores, **columns)))


def _with_outputs(given: CheckInput, outputs: Sequence[ServedOutput]) -> CheckInput:
    return replace(given, candidate=replace(given.candidate, outputs=outputs))


def events() -> CheckInput:
    """Explained, unexplained and unaudited events in both arms; an infinite gap and a logit that is no number."""
    given = arms(4)
    candidate = with_events(given.candidate, [(index, 3) for index in range(12)], explained=False)
    explained = with_events(candidate, [(index, 5) for index in range(8, 20)], explained=True)
    unaudited = with_events(explained, [(index, 6) for index in range(18, 24)], explained=None, gap=2.5)
    audit = (*candidate.audit, *explained.audit, *unaudited.audit)
    stock = with_events(given.stock, [(40, 2)], explained=False)
    gap, finite = unaudited.scores.gap.copy(), unaudited.scores.finite.copy()
    gap[unaudited.scores.offsets[30]] = np.inf
    finite[unaudited.scores.offsets[31]] = False
    scores = replace(unaudited.scores, gap=gap, finite=finite)
    return replace(given, candidate=replace(unaudited, scores=scores, audit=audit), stock=stock)


def few_events() -> CheckInput:
    """Too few to fail, and not audited."""
    given = arms(5)
    candidate = with_events(given.candidate, [(3, 2), (3, 4), (9, 1)], explained=None)
    return replace(given, candidate=candidate)


def swapped_ties() -> CheckInput:
    """The lower-ranked token of every tie."""
    given = arms(6)
    scores = given.candidate.scores
    second = scores.top_logits[:, 0] - scores.top_logits[:, 1]
    gap = np.where(second <= 0.0625, second, scores.gap).astype(np.float32)
    return _with_scores(given, gap=gap)


def bursts() -> CheckInput:
    """Six replies in which every other token is wrong."""
    given = arms(7)
    gap = given.candidate.scores.gap.copy()
    for index in range(0, 60, 10):
        start, stop = given.candidate.scores.offsets[index : index + 2]
        gap[start:stop:2] = 0.3
    return _with_scores(given, gap=gap)


def broken_replies() -> CheckInput:
    """Every rule of the structure check is broken once."""
    given = arms(8)
    outputs = list(given.candidate.outputs)
    first = outputs[0]
    ids = first.ids
    outputs[0] = replace(first, finish_reason=FinishReason.ABORT, stop_reason="out of memory")
    outputs[1] = replace(outputs[1], finish_reason=FinishReason.LENGTH)
    outputs[2] = replace(outputs[2], ids=(*ids, *(5,) * 70), finish_reason=FinishReason.LENGTH)
    outputs[3] = replace(outputs[3], ids=(5, 6), stop_reason=None)
    outputs[4] = replace(outputs[4], stop_reason=77)
    outputs[5] = replace(outputs[5], request_id="another")
    outputs[6] = replace(outputs[6], ids=(), finish_reason=FinishReason.STOP)
    outputs[7] = replace(outputs[7], ids=(5, STOP_ID, 6, STOP_ID))
    outputs[8] = replace(outputs[8], ids=(5, 4_000, STOP_ID))
    outputs[9] = replace(outputs[9], ids=(5, -1, STOP_ID))
    outputs[10] = replace(outputs[10], ids=(STOP_ID,))
    requests = list(given.requests)
    requests[10] = replace(requests[10], sampling=replace(requests[10].sampling, min_tokens=4))
    requests[11] = replace(requests[11], sampling=replace(requests[11].sampling, stop_strings=("END",)))
    outputs[11] = replace(outputs[11], ids=(5, 6), stop_reason="END")
    requests[12] = replace(requests[12], sampling=replace(requests[12].sampling, ignore_eos=True))
    outputs[12] = replace(outputs[12], ids=(5, STOP_ID, 6, STOP_ID))
    return replace(_with_outputs(given, outputs), requests=requests)


def telemetry() -> CheckInput:
    """Every column that a bucket is made of; errors after rejections, and in large batches."""
    given = arms(9)
    gap = given.candidate.scores.gap.copy()
    outputs = []
    for index, output in enumerate(given.candidate.outputs):
        number, start = len(output.ids), int(given.candidate.scores.offsets[index])
        after = tuple(float(position % 4 == 3) for position in range(number))
        gap[start : start + number] = np.where(np.array(after) > 0, 0.4, gap[start : start + number])
        outputs.append(
            replace(
                output,
                telemetry={
                    "after_rejection": after,
                    "block_position": tuple(float(position % 9) for position in range(number)),
                    "preempted": tuple(float(position == 5 and index % 9 == 0) for position in range(number)),
                    "cached": (float(index % 5 == 0),),
                    "batch": (float((1, 4, 16, 64, 200)[index % 5]),),
                    "drafts": (3.0,),
                    "wrong": (float("nan"),),
                },
            )
        )
    expect = {"drafts": True, "accepted": True, "wrong": 1, "diverging": 0.5, "batch": False, "cached": "yes"}
    return replace(_with_outputs(_with_scores(given, gap=gap), outputs), expect=expect)


def fulfilled() -> CheckInput:
    """Expectations that hold."""
    given = telemetry()
    return replace(given, expect={"drafts": 100, "batch": True, "diverging": True})


def long_replies() -> CheckInput:
    """Replies and prompts in every bucket of length."""
    generator = np.random.default_rng(10)
    sizes = (100, 400, 1_500, 5_000, 9_000)
    requests = tuple(
        replace(request, prompt_ids=tuple(range(3, 3 + sizes[index % 5])))
        for index, request in enumerate(make_requests(10, max_tokens=2_100))
    )
    lengths = np.array([2_100, 1_200, 300, 80, 20] * 2)
    candidate, stock = (
        make_arm(generator, requests, ArmSpec(name=name, lengths=lengths, shares=np.full(10, rate)))
        for name, rate in (("candidate", 0.05), ("stock", 0.002))
    )
    return check_input(requests, candidate, stock, thresholds())


def repeats() -> CheckInput:
    """Three replies to each prompt, which are one cluster."""
    given = arms(11)
    requests = [replace(request, cluster=f"p{index // 3}") for index, request in enumerate(given.requests)]
    return replace(given, requests=requests)


def forbidden() -> CheckInput:
    """Calibration forbids some checks."""
    given = arms(12)
    problems = {"near-tie": "stock is not stable", "event": "stock's gaps are too large"}
    return replace(given, thresholds=replace(given.thresholds, problems=problems))


def out_of_step() -> CheckInput:
    """A reply is missing."""
    given = arms(13)
    return _with_outputs(given, given.candidate.outputs[:-1])


def nothing_served() -> CheckInput:
    """No token in the candidate."""
    given = arms(14)
    scores = given.candidate.scores
    columns = {name: getattr(scores, name) for name in ForcedScores.__dataclass_fields__}
    empty = {name: value[:0] for name, value in columns.items() if isinstance(value, np.ndarray)}
    offsets = np.zeros_like(scores.offsets)
    outputs = [replace(output, ids=()) for output in given.candidate.outputs]
    candidate = Arm(name="candidate", outputs=outputs, scores=ForcedScores(**{**columns, **empty, "offsets": offsets}))
    return replace(given, candidate=candidate)


def not_finite() -> CheckInput:
    """Scores that are no numbers, in all three arms."""
    given = arms(15)

    def with_gaps(arm: Arm, step: int) -> Arm:
        finite = arm.scores.finite.copy()
        finite[::step] = False
        return replace(arm, scores=replace(arm.scores, finite=finite))

    return replace(
        given,
        candidate=with_gaps(given.candidate, 50),
        stock=with_gaps(given.stock, 90),
        calibration=with_gaps(given.calibration, 70),
    )


def parameters(*, is_thin: bool) -> CheckInput:
    """A penalty in every request and a grammar in some: honoured, or left out at a few tokens."""
    given = arms(19)
    asked = ({"repetition_penalty": 1.3}, {"presence_penalty": 0.5, "grammar": "regex:[ab]+"})
    requests = [
        replace(request, sampling=replace(request.sampling, **asked[index % 2]))
        for index, request in enumerate(given.requests)
    ]

    def replayed(arm: Arm, broken: Sequence[int]) -> Arm:
        scores = arm.scores
        gap, plain, best = scores.gap.copy(), scores.gap.copy(), scores.best_id.copy()
        plain[::50], best[::50] = 2.5, 77
        for index in broken:
            gap[scores.offsets[index] + 1], plain[scores.offsets[index] + 1] = (3.0, np.inf)[index % 2], 0.25
        flags = np.ones(scores.num_tokens, dtype=np.bool_)
        flags[scores.offsets[41] + 2 : scores.offsets[42]] = False
        columns = replace(scores, gap=gap, plain_gap=plain, plain_best_id=best, replayed=flags)
        return replace(arm, scores=columns)

    broken = range(0, 60, 5) if is_thin else ()
    return replace(
        given, requests=requests, candidate=replayed(given.candidate, broken), stock=replayed(given.stock, ())
    )


def own_stops() -> CheckInput:
    """Every way in which a reply can end against what its request says of stops."""
    given = arms(20)
    asked = ({"min_tokens": 6}, {"ignore_eos": True}, {"stop_strings": ("END",)})
    requests = [
        replace(request, sampling=replace(request.sampling, **asked[index % 3]))
        for index, request in enumerate(given.requests)
    ]

    def honest(arm: Arm) -> Arm:
        outputs = [
            replace(output, finish_reason=FinishReason.LENGTH, stop_reason=None) if index % 3 == 1 else output
            for index, output in enumerate(arm.outputs)
        ]
        texts = [("one two", "one") if index % 3 == 2 else None for index in range(len(outputs))]
        return replace(arm, outputs=outputs, stop_texts=texts)

    candidate, stock = honest(given.candidate), honest(given.stock)
    outputs, texts = list(candidate.outputs), list(candidate.stop_texts)
    outputs[3] = replace(outputs[3], ids=(5, 6, 7, 8, 9, STOP_ID))
    outputs[4] = given.candidate.outputs[4]
    outputs[5] = replace(outputs[5], ids=(5, 6), stop_reason="END")
    texts[8] = ("one END and more", "one END and")
    best, gap = candidate.scores.best_id.copy(), candidate.scores.gap.copy()
    at = int(candidate.scores.offsets[9]) + 7
    best[at], gap[at] = STOP_ID, 4.0
    scores = replace(candidate.scores, best_id=best, gap=gap)
    changed = replace(candidate, outputs=outputs, stop_texts=texts, scores=scores)
    return replace(given, requests=requests, candidate=changed, stock=stock)


def strict(dtype: str) -> CheckInput:
    """Tokens that differ, ends that differ, an id that does not exist; stock is not deterministic either."""
    given = arms(18)
    gap = given.candidate.scores.gap.copy()
    gap[given.candidate.scores.offsets[4]] = np.inf
    stock = list(given.stock.outputs)
    stock[:3] = given.candidate.outputs[:3]
    stock[2] = replace(stock[2], finish_reason=FinishReason.LENGTH)
    limits = replace(given.thresholds, logit_dtype=dtype)
    changed = replace(_with_scores(given, gap=gap), stock=replace(given.stock, outputs=stock), thresholds=limits)
    return replace(changed, is_strict=True, recomposed=given.candidate)


RUNS: dict[str, Callable[[], CheckInput]] = {
    "lossless": lambda: arms(1),
    "worse": lambda: arms(2, rates=(0.08, 0.01)),
    "slightly worse": lambda: arms(3, rates=(0.03, 0.01)),
    "no mismatch": lambda: arms(16, rates=(1e-9, 1e-9)),
    "few": lambda: arms(17, number=40, rates=(0.03, 0.01)),
    "strict": lambda: strict("bfloat16"),
    "strict in float32": lambda: strict("float32"),
    "events": events,
    "few events": few_events,
    "swapped ties": swapped_ties,
    "bursts": bursts,
    "broken replies": broken_replies,
    "telemetry": telemetry,
    "fulfilled": fulfilled,
    "long replies": long_replies,
    "repeats": repeats,
    "forbidden": forbidden,
    "parameters left out": lambda: parameters(is_thin=True),
    "parameters not replayed": lambda: parameters(is_thin=False),
    "own stops": own_stops,
    "out of step": out_of_step,
    "nothing served": nothing_served,
    "not finite": not_finite,
}


def results_of(given: CheckInput) -> dict[str, Any]:
    """What every check that applies says, and the description of the run where there is one to describe."""
    found: dict[str, Any] = {
        check.name: check.run(given).to_json()
        for check in (*builtin_checks(), *asked_checks(given))
        if check.applies(given.requests)
    }
    if given.candidate.scores.num_tokens and len(given.candidate.outputs) == len(given.requests):
        found["description"] = describe_run(given)
    return found


def calibration_input(seed: int, dtype: str = "bfloat16", *, logprobs: bool = True) -> CalibrationInput:
    """Stock served twice on 40 prompts; without log-probabilities a second scoring says how large the noise is."""
    generator = np.random.default_rng(seed)
    requests = make_requests(40, prefix="c")
    shares = beta_shares(generator, 40, 0.004, 0.002)
    lengths = generator.integers(30, 60, size=40)
    stock, recomposed = (
        make_arm(generator, requests, ArmSpec(name=name, lengths=lengths, shares=shares))
        for name in ("stock", "stock recomposed")
    )
    rescored = None
    if logprobs:
        stock = with_logprobs(stock, generator, 0.05)
    else:
        noise = generator.normal(0, 0.01, size=stock.scores.num_tokens)
        rescored = replace(stock.scores, gap=np.abs(stock.scores.gap + noise).astype(np.float32))
    return CalibrationInput(
        requests=requests, stock=stock, recomposed=recomposed, rescored=rescored, logit_dtype=dtype, seed=seed
    )


def calibrations() -> dict[str, Any]:
    """Thresholds of several stacks."""
    loud = calibration_input(4)
    gap = loud.stock.scores.gap.copy()
    gap[5] = 0.9
    large = replace(loud, stock=replace(loud.stock, scores=replace(loud.stock.scores, gap=gap)))
    given = {
        "bfloat16": calibration_input(1),
        "float16": calibration_input(2, "float16"),
        "float32": calibration_input(3, "float32", logprobs=False),
        "bfloat16 rescored": calibration_input(5, logprobs=False),
        "large gaps": large,
    }
    return {name: calibrate(item).to_json() for name, item in given.items()}


def powers() -> dict[str, Any]:
    """The power figure of a small run, and of one with repeats."""
    source = calibration_input(1)
    limits = calibrate(source)

    def power(requests: Sequence[Request], number: int, mean_tokens: float = 40.0) -> dict[str, Any]:
        return estimate_power(
            PowerInput(
                requests=requests,
                stock=source.stock,
                recomposed=source.recomposed,
                thresholds=limits,
                num_requests=number,
                mean_tokens=mean_tokens,
                seed=2,
                num_replicates=6,
            )
        ).to_json()

    paired = [replace(request, cluster=f"p{index // 2}") for index, request in enumerate(source.requests)]
    return {
        "plain": power(source.requests, 210),
        "few": power(source.requests, 60),
        "repeats": power(paired, 420),
        "longer": power(source.requests, 210, mean_tokens=200.0),
    }


def refusals() -> dict[str, str]:
    """What calibration says where it cannot go on."""
    plain, rescored = calibration_input(1), calibration_input(5, logprobs=False)
    unscored = replace(plain.stock.scores, finite=np.zeros_like(plain.stock.scores.finite))
    given = {
        "no source of noise": replace(rescored, rescored=None),
        "other tokens": replace(rescored, rescored=calibration_input(6).stock.scores),
        "no tokens": replace(plain, stock=replace(plain.stock, scores=unscored)),
        "another dtype": replace(plain, logit_dtype="bfloat"),
    }
    return {name: _refusal(item) for name, item in given.items()}


def _refusal(given: CalibrationInput) -> str:
    try:
        calibrate(given)
    except UsageError as error:
        return str(error)
    return "none"


def rounded(value: Any) -> Any:
    """Nine significant digits: more than any reader sees, fewer than two machines differ in."""
    if isinstance(value, dict):
        return {str(key): rounded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [rounded(item) for item in value]
    if isinstance(value, float) and math.isfinite(value):
        return float(f"{value:.9g}")
    return value


def everything() -> dict[str, Any]:
    """All of it, by name."""
    found: dict[str, Any] = {name: results_of(make()) for name, make in RUNS.items()}
    return {**found, "calibrations": calibrations(), "powers": powers(), "refusals": refusals()}


if __name__ == "__main__":
    PATH.write_text(json.dumps(rounded(everything()), indent=0, sort_keys=True) + "\n", encoding="utf-8")
