"""Records: JSON and back, verdict arithmetic, and numbers that JSON does not have."""

from __future__ import annotations

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.records import (
    AuditedEvent,
    FinishReason,
    ReportedLogprobs,
    Request,
    SamplingParams,
    ServedOutput,
    Usage,
    Verdict,
    require_finite,
)

VERDICTS = st.sampled_from(list(Verdict))
IDS = st.lists(st.integers(0, 10**6), max_size=6).map(tuple)


@given(st.lists(VERDICTS, max_size=6))
def test_combine_fails_closed(verdicts: list[Verdict]) -> None:
    combined = Verdict.combine(verdicts)
    if Verdict.FAIL in verdicts:
        assert combined is Verdict.FAIL
    elif not verdicts or Verdict.INCONCLUSIVE in verdicts:
        assert combined is Verdict.INCONCLUSIVE
    else:
        assert combined is Verdict.PASS


@given(ids=IDS, stops=IDS, bias=st.floats(-5, 5), temperature=st.floats(0, 2), words=st.lists(IDS, max_size=2))
def test_requests_survive_json(
    ids: tuple[int, ...], stops: tuple[int, ...], bias: float, temperature: float, words: list[tuple[int, ...]]
) -> None:
    sampling = SamplingParams(
        max_tokens=9,
        temperature=temperature,
        stop_ids=stops,
        stop_strings=("end",),
        logit_bias=((3, bias),),
        bad_words=tuple(words),
    )
    request = Request(id="a#1", prompt_ids=ids, sampling=sampling, set="chat", cluster="a", repeat_id=1)
    assert Request.from_json(json.loads(json.dumps(request.to_json()))) == request


@given(ids=IDS, reason=st.sampled_from(list(FinishReason)))
def test_outputs_survive_json(ids: tuple[int, ...], reason: FinishReason) -> None:
    output = ServedOutput(
        request_id="a",
        ids=ids,
        finish_reason=reason,
        stop_reason="end",
        arrival_ns=ids,
        logprobs=ReportedLogprobs(served=(-0.5,), top_ids=((1, 2),), top_logprobs=((-0.5, -1.5),)),
        usage=Usage(prompt_tokens=3, completion_tokens=len(ids)),
        telemetry={"drafts": (1.0, 2.0)},
    )
    assert ServedOutput.from_json(json.loads(json.dumps(output.to_json(), allow_nan=False))) == output


def test_reported_nan_is_kept_as_null() -> None:
    reported = ReportedLogprobs(served=(math.nan, -1.0), top_ids=((1,), (2,)), top_logprobs=((math.nan,), (-1.0,)))
    output = ServedOutput(request_id="a", ids=(1, 2), finish_reason=FinishReason.LENGTH, logprobs=reported)
    text = json.dumps(output.to_json(), allow_nan=False)
    back = ServedOutput.from_json(json.loads(text)).logprobs
    assert back is not None
    assert math.isnan(back.served[0])
    assert back.served[1] == -1.0


def test_an_infinite_gap_survives_json() -> None:
    event = AuditedEvent(request_id="a", position=1, served_id=9, best_id=2, gap_nats=math.inf, explained=False)
    text = json.dumps(event.to_json(), allow_nan=False)
    assert AuditedEvent.from_json(json.loads(text)) == event


@pytest.mark.parametrize("field", ["idz", "sampling"])
def test_unknown_fields_are_refused(field: str) -> None:
    data = Request(id="a", prompt_ids=(1,), sampling=SamplingParams(max_tokens=1), set="s", cluster="c").to_json()
    data[field] = data["sampling"] | {"temprature": 1} if field == "sampling" else 1
    with pytest.raises(TypeError):
        Request.from_json(data)


def test_non_default_names_what_was_asked() -> None:
    sampling = SamplingParams(max_tokens=5, temperature=0.5, logprobs=5, top_k=3)
    assert sampling.non_default() == {"temperature", "top_k"}
    assert not SamplingParams(max_tokens=7).non_default()


@pytest.mark.parametrize("value", [math.nan, math.inf, object(), {"a": [1, math.nan]}])
def test_json_has_no_such_number(value: object) -> None:
    with pytest.raises(ValueError, match=r"\$"):
        require_finite(value)
    require_finite({"a": [1, 2.5, None, "x", True]})
