"""An exercise that did not take place makes the claim INCONCLUSIVE, and the summary names what was missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.exercise import growing_together
from lossguard.checks.vacuity import VacuityCheck
from lossguard.errors import UsageError
from lossguard.exercise_plan import make_exercise
from lossguard.records import CheckResult, FinishReason, Request, SamplingParams, ServedOutput, Verdict
from tests.checks.simulated_arms import make_scores, thresholds


def reply(
    name: str, ids: Sequence[int] = (1, 2, 3), start: int = 0, step: int = 10, **telemetry: float
) -> ServedOutput:
    return ServedOutput(
        request_id=name,
        ids=tuple(ids),
        finish_reason=FinishReason.LENGTH,
        arrival_ns=tuple(start + step * index for index in range(len(ids))),
        telemetry={key: (value,) for key, value in telemetry.items()},
    )


def request_for(output: ServedOutput, prompt_length: int) -> Request:
    name, _, repeat = output.request_id.partition("#")
    return Request(
        id=output.request_id,
        prompt_ids=(1,) * prompt_length,
        sampling=SamplingParams(max_tokens=8),
        set="s",
        cluster=name,
        repeat_id=int(repeat or 0),
    )


def judged(exercise: Mapping[str, Any], outputs: Sequence[ServedOutput], prompt_length: int = 4) -> CheckResult:
    lengths = np.cumsum([0, *(len(output.ids) for output in outputs)])
    scores = make_scores(
        np.zeros(lengths[-1]), lengths, [output.request_id for output in outputs], np.ones(lengths[-1])
    )
    arm = Arm(name="candidate", outputs=outputs, scores=scores)
    requests = [request_for(output, prompt_length) for output in outputs]
    return VacuityCheck().run(
        CheckInput(
            requests=requests,
            stock=replace(arm, name="stock"),
            candidate=arm,
            thresholds=thresholds(),
            calibration_requests=requests,
            calibration=arm,
            expect={},
            vocab_size=100,
            seed=1,
            exercise=exercise,
        )
    )


TOGETHER = [reply(f"r{number}", start=number) for number in range(4)]
IN_TURN = [reply(f"r{number}", start=100 * number) for number in range(4)]
WHOLE = [reply(f"r{number}", start=number, step=0) for number in range(4)]


def repeated(*cached: float | None) -> list[ServedOutput]:
    names = ["p", *(f"p#{number}" for number in range(1, len(cached)))]
    return [
        reply(name) if value is None else reply(name, cached=value) for name, value in zip(names, cached, strict=True)
    ]


@pytest.mark.parametrize(
    ("exercise", "outputs", "missing"),
    [
        ({"concurrency": [1, 4]}, TOGETHER, None),
        ({"concurrency": [1, 8]}, TOGETHER, "up to 4 replies grew together, 8 were to"),
        ({"concurrency": [1, 4]}, IN_TURN, "up to 1 replies"),
        ({"concurrency": [1, 4]}, WHOLE, "stream = true"),
        ({"repeats": 3}, repeated(0, 64, 64), None),
        ({"repeats": 3}, repeated(16, 64, 48), None),
        ({"repeats": 3}, repeated(0, 64, 0), "0 of 1 prompts"),
        ({"repeats": 3}, repeated(64, 64, 64), "0 of 1 prompts"),
        ({"repeats": 3}, repeated(0, 64), "--repeats"),
        ({"repeats": 3}, repeated(None, None, None), "enable-prompt-tokens-details"),
        ({"preemption": True}, [reply("a", preempted=0.0), reply("b", preempted=2.0)], None),
        ({"preemption": True}, [reply("a", server_preempted=1.0)], None),
        ({"preemption": True}, [reply("a", preempted=0.0)], "no reply was preempted"),
        ({"preemption": True}, [reply("a")], "nothing tells"),
        ({"chunked_prefill": 3}, TOGETHER, None),
        ({"chunked_prefill": 4}, TOGETHER, "0 prompts"),
        ({"chunked_prefill": 3}, [reply("a", cached=2.0)], "0 prompts"),
        ({"long": 3}, TOGETHER, None),
        ({"long": 4}, TOGETHER, "3 tokens, not 4"),
    ],
)
def test_each_exercise(exercise: dict[str, Any], outputs: list[ServedOutput], missing: str | None) -> None:
    result = judged(exercise, outputs)
    assert result.verdict is (Verdict.PASS if missing is None else Verdict.INCONCLUSIVE), result.summary
    if missing is not None:
        assert missing in result.summary
        assert f"exercise {next(iter(exercise))}" in result.summary


def test_only_what_is_missing_is_named() -> None:
    result = judged({"long": 3, "preemption": True}, TOGETHER)
    assert result.verdict is Verdict.INCONCLUSIVE
    assert "preemption" in result.summary
    assert "long" not in result.summary
    assert [row["holds"] for row in result.evidence["expectations"]] == [False, True]


def test_without_an_exercise_nothing_is_expected() -> None:
    assert judged({}, WHOLE).summary == "nothing expected"


@pytest.mark.parametrize(
    ("table", "found"),
    [
        ({"concurency": [1, 8]}, "concurrency"),
        ({"concurrency": [8, 1]}, "ascending"),
        ({"concurrency": []}, "ascending"),
        ({"concurrency": 8}, "ascending"),
        ({"concurrency": [0, 8]}, "ascending"),
        ({"repeats": 1}, "2 at least"),
        ({"repeats": True}, "2 at least"),
        ({"preemption": 1}, "true or false"),
        ({"long": -1}, "number of tokens"),
        ({"chunked_prefill": "512"}, "tokens of a prefill chunk"),
    ],
)
def test_tables_that_do_not_fit(table: dict[str, Any], found: str) -> None:
    with pytest.raises(UsageError, match=found) as caught:
        make_exercise(table)
    assert caught.value.code == "LG0622"


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(1, 10)), min_size=1, max_size=12))
def test_growing_together_equals_a_count_at_every_moment(spans: list[tuple[int, int]]) -> None:
    outputs = [reply(f"r{at}", ids=(1, 2), start=start, step=length) for at, (start, length) in enumerate(spans)]
    counted = max(sum(start <= now < start + length for start, length in spans) for now in range(45))
    assert growing_together(outputs) == counted
