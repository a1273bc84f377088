"""Prompts and replies from a run folder, and which of them cannot be recorded."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from lossguard.errors import UsageError
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput
from lossguard.run_folder import RunFolder, append_line
from lossguard_mechanisms.replay.replies import replies_of, replies_of_run

REQUESTS = tuple(
    Request(
        id=f"math-{index:03d}",
        prompt_ids=tuple(range(1, 4 + index)),
        sampling=SamplingParams(max_tokens=8, seed=17),
        set="math" if index else "chat",
        cluster=f"math-{index // 2:03d}",
    )
    for index in range(4)
)
OUTPUTS = tuple(
    ServedOutput(request_id=request.id, ids=tuple(range(5, 6 + index)), finish_reason=FinishReason.LENGTH)
    for index, request in enumerate(REQUESTS)
)


def run_of(root: Path, requests: tuple[Request, ...], outputs: tuple[ServedOutput, ...]) -> Path:
    folder = RunFolder.create(root)
    folder.write_json("plan.json", {})
    folder.write_requests("requests.jsonl", requests)
    for output in outputs:
        append_line(folder.system("stock") / "outputs.jsonl", output.to_json())
    return folder.path


def test_replies_come_in_the_order_of_the_requests(tmp_path: Path) -> None:
    found = replies_of_run(run_of(tmp_path, REQUESTS, OUTPUTS[::-1]), "stock")
    assert found.replies.request_ids == tuple(request.id for request in REQUESTS)
    assert found.replies.sets == ("chat", "math", "math", "math")
    assert found.replies.clusters == ("math-000", "math-000", "math-001", "math-001")
    for index, request in enumerate(REQUESTS):
        assert tuple(found.replies.prompt(index)) == request.prompt_ids
        assert tuple(found.replies.reply(index)) == OUTPUTS[index].ids
    assert (found.temperature, found.seed, found.notes) == (0.0, 17, ())


def test_what_is_left_out_is_noted(tmp_path: Path) -> None:
    outputs = (OUTPUTS[0], replace(OUTPUTS[1], ids=()), OUTPUTS[2])
    found = replies_of_run(run_of(tmp_path, REQUESTS, outputs), "stock")
    assert found.replies.request_ids == ("math-000", "math-002")
    assert found.notes == (
        "1 requests of the run have no reply and are left out",
        "1 replies without tokens are left out",
    )
    first = replies_of_run(run_of(tmp_path, REQUESTS, OUTPUTS), "stock", max_requests=3)
    assert first.replies.num_requests == 3


def with_sampling(**changes: object) -> tuple[Request, ...]:
    """The last request sampled in another way."""
    sampling = replace(REQUESTS[3].sampling, **changes)  # type: ignore[arg-type]
    return (*REQUESTS[:3], replace(REQUESTS[3], sampling=sampling))


@pytest.mark.parametrize(
    ("requests", "outputs", "system", "problem"),
    [
        (REQUESTS, OUTPUTS, "other", "none of a system 'other'"),
        (REQUESTS, (), "stock", "none of a system 'stock'"),
        (REQUESTS, tuple(replace(output, ids=()) for output in OUTPUTS), "stock", "no reply has any token"),
        (with_sampling(temperature=0.7), OUTPUTS, "stock", "different temperatures"),
        (with_sampling(repetition_penalty=1.1), OUTPUTS, "stock", "repetition_penalty"),
        (REQUESTS, (*OUTPUTS[:3], replace(OUTPUTS[3], finish_reason=FinishReason.ABORT)), "stock", "1 were cut off"),
    ],
)
def test_runs_that_cannot_be_recorded_are_refused(
    tmp_path: Path, requests: tuple[Request, ...], outputs: tuple[ServedOutput, ...], system: str, problem: str
) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        replies_of_run(run_of(tmp_path, requests, outputs), system)
    assert caught.value.code == "LG1612"


@pytest.mark.parametrize(
    ("requests", "tokens", "problem"),
    [
        ((), {}, "no request"),
        (REQUESTS[:1], {"math-000": []}, "is empty"),
        ((replace(REQUESTS[0], prompt_ids=(3,)),), {"math-000": [1]}, "has 1 tokens"),
    ],
)
def test_replies_without_a_place_to_record_are_refused(
    requests: tuple[Request, ...], tokens: dict[str, list[int]], problem: str
) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        replies_of(requests, tokens)
    assert caught.value.code == "LG1610"
