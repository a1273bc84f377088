"""Functions that a configuration names, inside plain decoding of the embedded engine and on its finished replies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor

from lossguard.engines.base import EngineSpec, ForcedPrefix
from lossguard.engines.extensions import BatchContext
from lossguard.errors import EngineError, UsageError
from lossguard.records import FinishReason, Request, SamplingParams
from lossguard_mechanisms.engine.adapter import EmbeddedEngine
from lossguard_mechanisms.engine.options import parse_options
from lossguard_mechanisms.engine.sampler import RowSampling, choose
from lossguard_mechanisms.targets.manifest import write_manifest
from lossguard_mechanisms.targets.weights import save_target
from tests.mechanisms.engine.doubles import random_prompts, request
from tests.mechanisms.targets.tiny import pair

SAMPLES = "tests.engines.extension_samples"
HERE = "tests.mechanisms.engine.test_processors"


class Watch(LogitsProcessor):
    """Notes what it is called with, counts its own calls, and writes over its argument."""

    def __init__(self, context: BatchContext, seen: list[tuple[str, int, int, tuple[int, ...]]]) -> None:
        self._context = context
        self._seen = seen
        self._num_calls = 0

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        assert scores.dtype == torch.float32
        assert scores.shape == (1, self._context.vocab_size)
        (asked,) = self._context.requests
        place = input_ids.shape[1] - self._context.prompt_length
        self._seen.append((asked.id, place, self._num_calls, tuple(input_ids[0].tolist())))
        self._num_calls += 1
        best = scores.clone()
        scores.zero_()
        return best


SEEN: list[tuple[str, int, int, tuple[int, ...]]] = []


def watch(context: BatchContext) -> Watch:
    return Watch(context, SEEN)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny hybrid."""
    place = tmp_path_factory.mktemp("model")
    save_target(pair("qwen3_5_text").ours, place, dtype=torch.float32)
    write_manifest(place, {"made_by": "a test"})
    return place


def engine(folder: Path, **options: object) -> EmbeddedEngine:
    """A small engine on the CPU."""
    small = {"device": "cpu", "threads": 1, "slots": 3, "page_size": 8, "prefill_chunk": 16, **options}
    return EmbeddedEngine(EngineSpec(name="small", model_path=str(folder), options=small))


def requests(count: int, **sampling: object) -> list[Request]:
    """More than fit at once, of different lengths."""
    prompts = random_prompts(count, seed=2)
    return [request(f"r{at}", prompt, 6 + at % 4, **sampling) for at, prompt in enumerate(prompts)]


def replies(served: EmbeddedEngine, asked: list[Request]) -> dict[str, tuple[int, ...]]:
    return {output.request_id: output.ids for output in served.serve(asked)}


@pytest.mark.parametrize("sampling", [{}, {"temperature": 0.9, "seed": 5}])
def test_each_request_has_a_processor_of_its_own_that_sees_every_token_once(
    folder: Path, sampling: dict[str, object]
) -> None:
    SEEN.clear()
    asked = requests(7, **sampling)
    served = replies(engine(folder, logits_processors=[f"{HERE}:watch"]), asked)
    assert served == replies(engine(folder), asked)
    prompts = {item.id: item.prompt_ids for item in asked}
    expected = {
        (name, place, place, (*prompts[name], *ids[:place]))
        for name, ids in served.items()
        for place in range(len(ids))
    }
    assert len(SEEN) == len(expected)
    assert set(SEEN) == expected


def test_a_forced_token_is_served_and_the_reply_goes_on_from_it(folder: Path) -> None:
    asked = requests(5)
    plain = replies(engine(folder), asked)
    wrong = (plain["r2"][3] + 1) % 53
    planted = {"factory": f"{SAMPLES}:serve_one", "token": wrong, "request_id": "r2", "position": 3}
    served = replies(engine(folder, logits_processors=[planted]), asked)
    assert served["r2"][:4] == (*plain["r2"][:3], wrong)
    follow = request("follow", [*asked[2].prompt_ids, *plain["r2"][:3], wrong], len(plain["r2"]) - 4)
    assert served["r2"][4:] == replies(engine(folder), [follow])["follow"]
    assert {name: ids for name, ids in served.items() if name != "r2"} == {
        name: ids for name, ids in plain.items() if name != "r2"
    }


def test_forced_decode_goes_through_the_processors_of_the_request(folder: Path) -> None:
    asked = requests(3)
    plain = replies(engine(folder), asked)
    planted = {"factory": f"{SAMPLES}:serve_one", "token": 52, "request_id": "r1", "position": 2}
    served = engine(folder, logits_processors=[planted])
    batch = [ForcedPrefix(request=item, served_ids=plain[item.id], num_positions=5) for item in [*asked, asked[1]]]
    rows = served.forced_decode(batch)
    changed = (*plain["r1"][:2], 52, *plain["r1"][3:5])
    assert rows == [plain["r0"][:5], changed, plain["r2"][:5], changed]


def test_reported_log_probabilities_are_those_before_the_processors(folder: Path) -> None:
    asked = [request("a", [1, 2, 3], 5, logprobs=3)]
    (plain,) = engine(folder).serve(asked)
    (watched,) = engine(folder, logits_processors=[f"{HERE}:watch"]).serve(asked)
    assert watched.logprobs == plain.logprobs


def test_a_ban_comes_before_the_processors() -> None:
    seen = []

    def process(scores: torch.Tensor) -> torch.Tensor:
        seen.append(scores.clone())
        return scores

    logits = torch.tensor([[1.0, 4.0, 2.0]], dtype=torch.bfloat16)
    row = RowSampling(params=SamplingParams(max_tokens=1), key=0, position=0, banned_ids=(1,), process=process)
    assert choose(logits, [row]).tolist() == [2]
    assert seen[0].tolist() == [[1.0, -float("inf"), 2.0]]
    assert logits.tolist() == [[1.0, 4.0, 2.0]]


def test_post_processors_change_finished_replies_of_speculation_too(folder: Path) -> None:
    asked = requests(4)
    first = replies(engine(folder), asked)
    stopping = [
        request(item.id, item.prompt_ids, item.sampling.max_tokens, stop_ids=(first[item.id][2],)) for item in asked
    ]
    served = engine(folder, post_processors=[f"{SAMPLES}:report_length"])
    assert {output.finish_reason for output in engine(folder).serve(stopping)} == {FinishReason.STOP}
    assert {output.finish_reason for output in served.serve(stopping)} == {FinishReason.LENGTH}
    options = parse_options(
        EngineSpec(name="s", model_path="", options={"drafter": "d", "post_processors": [f"{SAMPLES}:report_length"]})
    )
    assert options.cuda_graphs


def test_a_post_processor_that_returns_no_reply_is_an_error(folder: Path) -> None:
    with pytest.raises(EngineError, match="LG0218"):
        list(engine(folder, post_processors=[f"{SAMPLES}:no_output"]).serve(requests(2)))


def test_a_processor_that_raises_breaks_the_system_and_leaves_it_usable(folder: Path) -> None:
    served = engine(folder, logits_processors=[f"{SAMPLES}:fail"])
    for _ in range(2):
        with pytest.raises(EngineError, match="this batch fails"):
            list(served.serve(requests(2)))


def test_graphs_are_off_beside_processors(folder: Path) -> None:
    options = {"logits_processors": [f"{SAMPLES}:fail"]}
    assert not parse_options(EngineSpec(name="s", model_path="", options=options)).cuda_graphs
    assert parse_options(EngineSpec(name="s", model_path="", options={})).cuda_graphs


@pytest.mark.parametrize(
    ("options", "code", "text"),
    [
        ({"logits_processors": [f"{SAMPLES}:fail"], "drafter": "d"}, "LG0204", "plain decoding"),
        ({"logits_processors": [f"{SAMPLES}:fail"], "cuda_graphs": True}, "LG0204", "graph"),
        ({"logits_processors": f"{SAMPLES}:fail"}, "LG0204", "should be a list"),
        ({"post_processors": ["no_colon"]}, "LG0204", "module:function"),
        ({"logits_processors": ["no.such.module:function"]}, "LG0205", "cannot be imported"),
        ({"post_processors": [f"{SAMPLES}:absent"]}, "LG0205", "has no function"),
        ({"state_edits": []}, "LG0204", "unknown option"),
    ],
)
def test_what_cannot_be_is_refused(folder: Path, options: dict[str, object], code: str, text: str) -> None:
    with pytest.raises(UsageError, match=code) as found:
        engine(folder, **options)
    assert text in str(found.value)


def test_the_fingerprint_names_them(folder: Path) -> None:
    facts = engine(folder, logits_processors=[{"factory": f"{HERE}:watch"}]).fingerprint()
    assert facts["options"]["logits_processors"] == ({"target": f"{HERE}:watch", "arguments": {}},)
