"""The engine as lossguard sees it: options, requests it refuses, replies, forced decode, paces, damaged models."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lossguard.engines.base import EngineSpec, ForcedPrefix, Pace, PacedEngine
from lossguard.engines.registry import engine_factory
from lossguard.errors import EngineError, IntegrityError, UsageError
from lossguard.records import FinishReason, Request, require_finite
from lossguard_mechanisms.drafters.fresh import random_drafter
from lossguard_mechanisms.drafters.loading import save_drafter
from lossguard_mechanisms.engine.adapter import EmbeddedEngine
from lossguard_mechanisms.targets.manifest import write_manifest
from lossguard_mechanisms.targets.weights import save_target
from tests.mechanisms.engine.doubles import random_prompts, request
from tests.mechanisms.targets.tiny import pair


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny hybrid with its manifest."""
    place = tmp_path_factory.mktemp("model")
    save_target(pair("qwen3_5_text").ours, place, dtype=torch.float32)
    write_manifest(place, {"made_by": "a test"})
    return place


@pytest.fixture(scope="module")
def drafter(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A drafter of random weights for it."""
    place = tmp_path_factory.mktemp("drafter")
    save_drafter(random_drafter("dflash2", pair("qwen3_5_text").ours, seed=1), place, dtype=torch.float32)
    return place


def engine(folder: Path, **options: object) -> EmbeddedEngine:
    """A small engine on the CPU."""
    small = {"device": "cpu", "threads": 1, "slots": 3, "page_size": 8, "prefill_chunk": 16, **options}
    return EmbeddedEngine(EngineSpec(name="small", model_path=str(folder), options=small))


def requests(count: int, **sampling: object) -> list[Request]:
    """More than fit at once."""
    return [
        request(f"r{at}", prompt, 6 + at % 4, **sampling) for at, prompt in enumerate(random_prompts(count, seed=2))
    ]


def test_the_registry_finds_it() -> None:
    factory = engine_factory("lossguard_mechanisms.engine.adapter:create")
    assert factory.__name__ == "create"


def test_the_fingerprint_is_json_and_gives_the_reason_of_every_choice(folder: Path) -> None:
    facts = engine(folder).fingerprint()
    require_finite(facts)
    assert facts["kernels"] is False
    assert {name for name, reason in facts["reasons"].items() if reason} == {
        "device", "dtype", "threads", "packed_weights", "kernels", "cache_tokens", "policy",
    }  # fmt: skip


def test_every_request_is_answered_once_though_slots_are_few(folder: Path) -> None:
    asked = requests(8)
    served = engine(folder)
    outputs = list(served.serve(asked))
    assert sorted(output.request_id for output in outputs) == sorted(item.id for item in asked)
    for output in outputs:
        wanted = next(item.sampling.max_tokens for item in asked if item.id == output.request_id)
        assert len(output.ids) == len(output.arrival_ns) == wanted
        assert output.finish_reason is FinishReason.LENGTH
        assert list(output.arrival_ns) == sorted(output.arrival_ns)
    served.close()
    served.close()


def test_forced_decode_gives_the_engines_own_tokens_along_its_own_replies(folder: Path) -> None:
    served = engine(folder)
    asked = requests(5)
    replies = {output.request_id: output.ids for output in served.serve(asked)}
    batch = [
        ForcedPrefix(request=item, served_ids=replies[item.id], num_positions=len(replies[item.id]) - at % 2)
        for at, item in enumerate(asked)
    ]
    rows = served.forced_decode(batch)
    assert rows == [replies[item.id][: prefix.num_positions] for item, prefix in zip(asked, batch, strict=True)]


def test_forced_decode_feeds_the_recorded_token_and_reports_its_own(folder: Path) -> None:
    served = engine(folder)
    asked = requests(1)[0]
    (own,) = (output.ids for output in served.serve([asked]))
    other = (own[0] + 1) % 53
    recorded = (other, *own[1:])
    (row,) = served.forced_decode([ForcedPrefix(request=asked, served_ids=recorded, num_positions=3)])
    assert row[0] == own[0]
    follow = request("follow", [*asked.prompt_ids, other], 1)
    (expected,) = (output.ids for output in served.serve([follow]))
    assert row[1] == expected[0]


def test_log_probabilities_are_those_of_the_served_tokens(folder: Path) -> None:
    (output,) = engine(folder).serve([request("a", [1, 2, 3], 5, logprobs=4)])
    assert output.logprobs is not None
    assert len(output.logprobs.served) == 5
    for token, served, ids, values in zip(
        output.ids, output.logprobs.served, output.logprobs.top_ids, output.logprobs.top_logprobs, strict=True
    ):
        assert ids[0] == token
        assert values[0] == pytest.approx(served)
        assert list(values) == sorted(values, reverse=True)
        assert served <= 0


def test_the_same_seed_gives_the_same_reply_and_another_another(folder: Path) -> None:
    served = engine(folder)

    def replies(seed: int) -> list[tuple[int, ...]]:
        outputs = served.serve(requests(6, temperature=1.0, seed=seed))
        return [output.ids for output in sorted(outputs, key=lambda output: output.request_id)]

    assert replies(3) == replies(3)
    assert replies(3) != replies(4)


def test_paces_limit_what_is_under_way(folder: Path) -> None:
    served = engine(folder)
    assert isinstance(served, PacedEngine)
    outputs = list(served.serve_paced(requests(6), Pace(concurrency=2, stagger_seconds=0.001)))
    assert len(outputs) == 6
    assert max(output.telemetry["under_way"][0] for output in outputs) == 2
    assert max(max(output.telemetry["batch"]) for output in outputs) <= 2


def test_an_abandoned_iterator_leaves_nothing_behind(folder: Path) -> None:
    served = engine(folder)
    stream = served.serve(requests(8))
    next(stream)
    stream.close()  # type: ignore[attr-defined]
    assert len(list(served.serve(requests(4)))) == 4


def test_speculation_reports_what_it_did_and_serves_the_same(folder: Path, drafter: Path) -> None:
    plain = {output.request_id: output.ids for output in engine(folder).serve(requests(5))}
    served = engine(folder, drafter=str(drafter), num_drafts=3)
    assert not served.capabilities.forced_decode
    for output in served.serve(requests(5)):
        assert output.ids == plain[output.request_id]
        assert output.telemetry["drafts"][0] > 0
        assert len(output.telemetry["block_position"]) == len(output.ids)
    with pytest.raises(EngineError, match="LG1502"):
        served.forced_decode([])


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_a_drafter_alone_is_its_chain_to_the_last_bit(folder: Path, drafter: Path, dtype: str) -> None:
    default, chain, whole = (
        {output.request_id: output for output in served.serve(requests(4, logprobs=3))}
        for served in (
            engine(folder, drafter=str(drafter), dtype=dtype, **options)
            for options in ({}, {"policy": "chain"}, {"policy": "chain", "num_drafts": 7})
        )
    )
    for name, output in default.items():
        for other in (chain[name], whole[name]):
            assert (other.ids, other.logprobs, other.telemetry) == (output.ids, output.logprobs, output.telemetry)


def test_trees_are_options_and_their_scores_are_a_fact(folder: Path, drafter: Path) -> None:
    plain = {output.request_id: output.ids for output in engine(folder).serve(requests(5))}
    served = engine(folder, drafter=str(drafter), policy="best-first", nodes=12, depth=4)
    for output in served.serve(requests(5)):
        assert output.ids == plain[output.request_id]
        assert output.telemetry["drafts"][0] == 12 * output.telemetry["steps"][0]
    facts = served.fingerprint()
    assert (facts["options"]["policy"], facts["options"]["nodes"], facts["options"]["depth"]) == ("best-first", 12, 4)
    assert facts["reasons"]["policy"] == "scores of pairs of candidates, which dflash2 gives"
    assert engine(folder, drafter=str(drafter)).fingerprint()["reasons"]["policy"] == "the drafter's own chain"


@pytest.mark.parametrize(
    ("options", "code"),
    [
        ({"slot": 4}, "LG0204"),
        ({"slots": 0}, "LG0204"),
        ({"num_drafts": 3}, "LG0204"),
        ({"order": "random"}, "LG0204"),
        ({"policy": "best-first"}, "LG0204"),
        ({"nodes": 4}, "LG0204"),
        ({"drafter": "DRAFTER", "policy": "bestfirst"}, "LG0204"),
        ({"drafter": "DRAFTER", "nodes": 4}, "LG0204"),
        ({"drafter": "DRAFTER", "policy": "static", "num_drafts": 3}, "LG0204"),
        ({"drafter": "nowhere", "policy": "static"}, "LG1402"),
        ({"drafter": "DRAFTER", "policy": "static", "nodes": 64}, "LG1901"),
        ({"drafter": "DRAFTER", "policy": "eagle-2", "nodes": 9, "depth": 1}, "LG1901"),
        ({"drafter": "DRAFTER", "policy": "ddtree", "depth": 8}, "LG1903"),
    ],
)
def test_bad_options_are_refused(folder: Path, drafter: Path, options: dict[str, object], code: str) -> None:
    given = {name: str(drafter) if value == "DRAFTER" else value for name, value in options.items()}
    with pytest.raises(UsageError, match=code):
        engine(folder, **given)


@pytest.mark.parametrize(
    ("asked", "code"),
    [
        (request("a", [1] * 510, 10), "LG0208"),
        (request("a", [], 4), "LG0208"),
        (request("a", [99], 4), "LG0208"),
        (request("a", [1], 4, repetition_penalty=1.1), "LG0207"),
    ],
)
def test_requests_that_do_not_fit_are_refused_before_anything_runs(folder: Path, asked: Request, code: str) -> None:
    with pytest.raises(UsageError, match=code):
        engine(folder).serve([asked])


def test_a_request_larger_than_all_pages_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError, match="LG1504"):
        list(engine(folder, cache_tokens=64).serve([request("a", [1] * 60, 10)]))


def test_a_changed_weight_is_noticed(folder: Path, tmp_path: Path) -> None:
    for path in folder.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    weights = tmp_path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match="LG1305"):
        list(engine(tmp_path).serve(requests(1)))


def test_a_changed_drafter_is_noticed(folder: Path, tmp_path: Path) -> None:
    save_drafter(random_drafter("dflash2", pair("qwen3_5_text").ours, seed=1), tmp_path, dtype=torch.float32)
    write_manifest(tmp_path, {"made_by": "a test"})
    weights = tmp_path / "model.safetensors"
    data = bytearray(weights.read_bytes())
    data[-5] ^= 1
    weights.write_bytes(bytes(data))
    with pytest.raises(IntegrityError, match="LG1305"):
        list(engine(folder, drafter=str(tmp_path)).serve(requests(1)))
