"""The decode loop of the timing benchmark, run eagerly on the CPU; its graph is checked on a GPU by the campaigns."""

from __future__ import annotations

import pytest

from benchmarks.timing.cuda_graph_loop import create, step_seconds
from lossguard.engines.base import EngineSpec
from lossguard.errors import EngineError, UsageError
from lossguard.records import Request, SamplingParams, ServedOutput

TINY = {"shape": "tiny", "device": "cpu", "num_positions": 48}


def loop_options(**options: object) -> EngineSpec:
    return EngineSpec(name="loop", model_path="", options={**TINY, **options})


def request(number: int, *, max_tokens: int = 6, ignore_eos: bool = True) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, ignore_eos=ignore_eos)
    prompt = tuple(range(3 + number, 9 + 3 * number))
    return Request(id=f"r{number}", prompt_ids=prompt, sampling=sampling, set="a", cluster=f"c{number}")


def served(**options: object) -> dict[str, ServedOutput]:
    requests = [request(number) for number in range(5)]
    return {output.request_id: output for output in create(loop_options(**options)).serve(requests)}


def test_a_reply_does_not_depend_on_the_batch() -> None:
    alone, together = served(batch_size=1), served(batch_size=3)
    assert {name: output.ids for name, output in alone.items()} == {name: o.ids for name, o in together.items()}
    assert len({output.ids for output in alone.values()}) > 1


def test_nothing_is_left_of_the_batch_before() -> None:
    loop = create(loop_options())
    first, second = list(loop.serve([request(1)])), list(loop.serve([request(4), request(1)]))
    assert first[0].ids == second[1].ids


def test_every_token_arrives_once_and_in_order() -> None:
    for output in served(batch_size=2).values():
        assert len(output.arrival_ns) == len(output.ids) == 6
        assert list(output.arrival_ns) == sorted(output.arrival_ns)
        assert output.sent_ns < output.arrival_ns[0]


def test_a_reset_leaves_nothing_behind() -> None:
    loop = create(loop_options())
    before = loop.reset()
    first = list(loop.serve([request(1)]))
    assert loop.reset() == before == {"left_behind": 0, "weights": before["weights"]}
    assert before["weights"] > 0
    assert next(iter(loop.serve([request(1)]))).ids == first[0].ids


def test_steps_are_timed() -> None:
    assert len(step_seconds(create(loop_options()), 9)) == 8


@pytest.mark.parametrize("wrong", [request(1, max_tokens=47), request(1, ignore_eos=False)])
def test_a_request_that_does_not_fit_is_refused(wrong: Request) -> None:
    with pytest.raises(EngineError, match="LG0217"):
        list(create(loop_options()).serve([wrong]))


@pytest.mark.parametrize("options", [{"extra_cycles": -1}, {"extra_cycles": 5}, {"shape": "large"}, {"rows": 2}])
def test_a_wrong_option_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="LG0204"):
        create(loop_options(**options))
