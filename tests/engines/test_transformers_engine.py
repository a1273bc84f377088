"""The transformers engine on a tiny model, held against the model itself."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from lossguard.engines import transformers_session
from lossguard.engines.base import ForcedPrefix
from lossguard.errors import EngineError, UsageError
from lossguard.records import FinishReason
from tests.engines.tiny_systems import (
    MAX_TOKENS,
    SAMPLES,
    STOP_ID,
    engine,
    ids_of,
    make_requests,
    prefixes,
    raw_logits,
    serve,
)


def test_greedy_replies_are_the_argmax_of_the_model(tiny_path: str) -> None:
    requests = make_requests()
    outputs = serve(tiny_path, requests, batch_size=4)
    for request, output in zip(requests, outputs, strict=True):
        assert output.ids == tuple(raw_logits(tiny_path, request, output.ids).argmax(dim=-1).tolist())
        assert len(output.arrival_ns) == len(output.ids)
        assert list(output.arrival_ns) == sorted(output.arrival_ns)
        assert 0 < output.sent_ns <= output.arrival_ns[0]
    assert {output.telemetry["batch"] for output in outputs} == {(4.0,), (2.0,)}


def test_a_reply_keeps_the_stop_id_that_ended_it(tiny_path: str) -> None:
    requests = make_requests()
    target = serve(tiny_path, requests)[1].ids
    stop = next(token for token in target[2:] if token not in target[:2])
    stopping = [replace(item, sampling=replace(item.sampling, stop_ids=(STOP_ID, stop))) for item in requests]
    outputs = serve(tiny_path, stopping)
    reply = outputs[1]
    assert reply.ids == target[: target.index(stop) + 1]
    assert (reply.finish_reason, reply.stop_reason) == (FinishReason.STOP, stop)
    others = [output for output in outputs if stop not in output.ids and STOP_ID not in output.ids]
    assert others
    assert all(output.finish_reason is FinishReason.LENGTH and len(output.ids) == MAX_TOKENS for output in others)


def test_ignore_eos_goes_on_past_the_models_own_end_only(tiny_path: str) -> None:
    one = make_requests(1)[0]
    plant = [{"factory": f"{SAMPLES}:serve_one", "token": STOP_ID, "request_id": "r0", "position": 3}]
    (stopped,) = serve(tiny_path, [one], logits_processors=plant)
    assert (len(stopped.ids), stopped.stop_reason) == (4, STOP_ID)
    sampling = replace(one.sampling, ignore_eos=True)
    (passed,) = serve(tiny_path, [replace(one, sampling=sampling)], logits_processors=plant)
    assert len(passed.ids) == MAX_TOKENS
    assert passed.ids[3] == STOP_ID


@pytest.mark.parametrize("position", [0, 5])
def test_min_tokens_holds_the_stop_id_back(tiny_path: str, position: int) -> None:
    plant = [{"factory": f"{SAMPLES}:serve_one", "token": 7, "request_id": "r0", "position": position}]
    requests = make_requests(1, stop_ids=(7,), min_tokens=position + 1)
    (free,) = serve(tiny_path, make_requests(1, stop_ids=(7,)), logits_processors=plant)
    assert len(free.ids) == position + 1
    (held,) = serve(tiny_path, requests)
    assert len(held.ids) > position


def test_a_stop_string_ends_a_reply(tiny_path: str) -> None:
    (plain,) = serve(tiny_path, make_requests(1))
    string = f"w{plain.ids[3]:03}"
    (stopped,) = serve(tiny_path, make_requests(1, stop_strings=("w510", string)))
    assert stopped.finish_reason is FinishReason.STOP
    assert stopped.stop_reason == string
    assert stopped.ids == plain.ids[: plain.ids.index(plain.ids[3]) + 1]


def test_logit_bias_and_bad_words_act(tiny_path: str) -> None:
    requests = make_requests()
    plain = serve(tiny_path, requests)
    first = plain[0].ids[0]
    banned = serve(tiny_path, [replace(r, sampling=replace(r.sampling, bad_words=((first,),))) for r in requests])
    assert all(first not in output.ids for output in banned)
    biased = serve(tiny_path, [replace(r, sampling=replace(r.sampling, logit_bias=((9, 1e4),))) for r in requests])
    assert all(set(output.ids) == {9} for output in biased)


def test_a_models_own_generation_defaults_never_leak(tiny_path: str) -> None:
    saved = json.loads((Path(tiny_path) / "generation_config.json").read_text(encoding="utf-8"))
    assert saved["do_sample"] is True  # and a repetition penalty: either would change the replies below
    requests = make_requests(2, stop_ids=())
    outputs = serve(tiny_path, requests)
    for request, output in zip(requests, outputs, strict=True):
        assert output.ids == tuple(raw_logits(tiny_path, request, output.ids).argmax(dim=-1).tolist())
        assert len(output.ids) == MAX_TOKENS


def test_sampling_follows_its_seeds_and_leaves_torchs_state_alone(tiny_path: str) -> None:
    requests = make_requests(temperature=1.5, seed=3)
    state = torch.random.get_rng_state()
    first, again = (ids_of(serve(tiny_path, requests)) for _ in range(2))
    other = ids_of(serve(tiny_path, make_requests(temperature=1.5, seed=4)))
    assert first == again
    assert first != other
    assert torch.equal(state, torch.random.get_rng_state())


def test_sampling_filters_are_those_asked_for(tiny_path: str) -> None:
    requests = make_requests(temperature=5.0, seed=3)
    greedy = serve(tiny_path, make_requests())
    assert ids_of(serve(tiny_path, [replace(r, sampling=replace(r.sampling, top_k=1)) for r in requests])) == ids_of(
        greedy
    )
    ranks = []  # transformers' own default of top_k = 50 must not cut the support
    for request, output in zip(requests, serve(tiny_path, requests), strict=True):
        logits = raw_logits(tiny_path, request, output.ids)
        served = logits.gather(1, torch.tensor(output.ids)[:, None])
        ranks += (logits > served).sum(dim=-1).tolist()
    assert max(ranks) >= 50


def test_reported_logprobs_are_those_of_the_raw_logits(tiny_path: str) -> None:
    requests = make_requests(3, logprobs=3, repetition_penalty=1.8)
    for request, output in zip(requests, serve(tiny_path, requests), strict=True):
        expected = torch.log_softmax(raw_logits(tiny_path, request, output.ids), dim=-1)
        assert output.logprobs is not None
        served = expected.gather(1, torch.tensor(output.ids)[:, None])[:, 0]
        torch.testing.assert_close(torch.tensor(output.logprobs.served), served, atol=1e-4, rtol=0)
        values, ids = expected.topk(3)
        torch.testing.assert_close(torch.tensor(output.logprobs.top_logprobs), values, atol=1e-4, rtol=0)
        assert output.logprobs.top_ids == tuple(tuple(row) for row in ids.tolist())


def test_forced_decode_repeats_stocks_own_replies_bit_for_bit(tiny_bfloat16_path: str) -> None:
    requests = make_requests(12)
    system = engine(tiny_bfloat16_path)
    assert system.capabilities.logit_dtype == "bfloat16"
    outputs = list(system.serve(requests))
    assert system.forced_decode(prefixes(requests, outputs)) == ids_of(outputs)


def test_forced_decode_follows_the_recorded_tokens(tiny_path: str) -> None:
    requests = make_requests(4)
    generator = torch.Generator().manual_seed(5)
    recorded = [tuple(torch.randint(0, 512, (length,), generator=generator).tolist()) for length in (9, 3, 7, 9)]
    recorded[0] = (*recorded[0][:2], STOP_ID, *recorded[0][3:])  # goes on past a stop id
    batch = [
        ForcedPrefix(request=request, served_ids=ids, num_positions=count)
        for request, ids, count in zip(requests, recorded, (9, 3, 5, 0), strict=True)
    ]
    served = engine(tiny_path).forced_decode(batch)
    assert [len(tokens) for tokens in served] == [9, 3, 5, 0]
    for prefix, tokens in zip(batch, served, strict=True):
        expected = raw_logits(tiny_path, prefix.request, prefix.served_ids).argmax(dim=-1)
        assert tokens == tuple(expected.tolist()[: prefix.num_positions])


def test_forced_decode_honours_constraints_of_each_request(tiny_path: str) -> None:
    requests = make_requests(4)
    (ban,) = {ids[0] for ids in ids_of(serve(tiny_path, requests[:1]))}
    requests[1] = replace(requests[0], id="r1", sampling=replace(requests[0].sampling, bad_words=((ban,),)))
    outputs = serve(tiny_path, requests)
    assert outputs[0].ids[0] == ban != outputs[1].ids[0]
    assert engine(tiny_path).forced_decode(prefixes(requests, outputs)) == ids_of(outputs)


def test_forced_decode_of_nothing(tiny_path: str) -> None:
    request = make_requests(1)[0]
    system = engine(tiny_path)
    assert system.forced_decode([]) == []
    assert system.forced_decode([ForcedPrefix(request=request, served_ids=(), num_positions=0)]) == [()]


@pytest.mark.parametrize(
    "options",
    [
        {"prompt_lookup_num_tokens": 3, "max_matching_ngram_size": 1},
        {"assistant_model": "self", "num_assistant_tokens": 3},
    ],
)
def test_drafts_change_no_token_and_are_counted(tiny_path: str, options: dict[str, Any]) -> None:
    requests = make_requests(4, max_tokens=40)
    plain, drafted = serve(tiny_path, requests), serve(tiny_path, requests, **options)
    assert ids_of(drafted) == ids_of(plain)
    for output in drafted:
        telemetry = output.telemetry
        assert telemetry["steps"][0] + telemetry["accepted"][0] == len(output.ids)
        assert telemetry["drafts"][0] >= telemetry["accepted"][0]
        assert len(telemetry["block_position"]) == len(telemetry["after_rejection"]) == len(output.ids)
        assert telemetry["block_position"].count(0.0) == telemetry["steps"][0]
        assert len(set(output.arrival_ns)) <= telemetry["steps"][0]
    assert sum(output.telemetry["accepted"][0] for output in drafted) > 0


def test_drafting_systems_say_what_they_cannot_do(tiny_path: str) -> None:
    system = engine(tiny_path, prompt_lookup_num_tokens=3)
    assert not system.capabilities.forced_decode
    with pytest.raises(UsageError, match="stop_strings"):
        system.serve(make_requests(1, stop_strings=("x",)))
    with pytest.raises(UsageError, match="logprobs"):
        system.serve(make_requests(1, logprobs=1))
    with pytest.raises(EngineError) as caught:
        system.forced_decode([])
    assert caught.value.code == "LG0213"


def test_nothing_is_loaded_before_requests_are_checked(tiny_path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: object) -> None:
        raise AssertionError("loaded")

    monkeypatch.setattr(transformers_session, "load_model", fail)
    system = engine(tiny_path)
    assert system.capabilities.concurrency == 64
    assert system.fingerprint()["dtype"] == "float32"
    odd = replace(make_requests(1)[0], prompt_ids=(5, 512))
    with pytest.raises(UsageError, match="'r0' has prompt id 512"):
        system.serve([odd])
    with pytest.raises(UsageError, match="256"):
        system.serve(make_requests(1, max_tokens=256))
    with pytest.raises(AssertionError, match="loaded"):
        list(system.serve(make_requests(1)))


def test_other_orders_and_paddings_serve_the_same_requests(tiny_path: str) -> None:
    requests = make_requests(7)
    plain = serve(tiny_path, requests)
    for options in ({"order": "length", "batch_size": 2}, {"pad_to_multiple_of": 16}):
        assert ids_of(serve(tiny_path, requests, **options)) == ids_of(plain)


def test_an_extension_acts_in_its_row_and_later_tokens_follow(tiny_path: str) -> None:
    requests = make_requests(3)
    plain = serve(tiny_path, requests)
    plant = [{"factory": f"{SAMPLES}:serve_one", "token": 77, "request_id": "r1", "position": 4}]
    faulty = serve(tiny_path, requests, logits_processors=plant)
    assert [ids_of(faulty)[row] == ids_of(plain)[row] for row in range(3)] == [True, False, True]
    assert faulty[1].ids[:5] == (*plain[1].ids[:4], 77)
    expected = raw_logits(tiny_path, requests[1], faulty[1].ids).argmax(dim=-1).tolist()
    assert list(faulty[1].ids[5:]) == expected[5:]


def test_post_processors_act_on_finished_replies(tiny_path: str) -> None:
    (output,) = serve(tiny_path, make_requests(1), post_processors=[f"{SAMPLES}:report_length"])
    assert output.finish_reason is FinishReason.LENGTH
    with pytest.raises(EngineError, match="returned a NoneType"):
        serve(tiny_path, make_requests(1), post_processors=[f"{SAMPLES}:no_output"])


def test_a_failing_batch_is_named(tiny_path: str) -> None:
    with pytest.raises(EngineError, match="'r0': ValueError: this batch fails") as caught:
        serve(tiny_path, make_requests(2), logits_processors=[f"{SAMPLES}:fail"])
    assert caught.value.code == "LG0211"


def test_a_model_that_cannot_be_loaded(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"vocab_size": 512, "model_type": "unheard"}), encoding="utf-8")
    with pytest.raises(EngineError) as caught:
        serve(str(tmp_path), make_requests(1))
    assert caught.value.code == "LG0209"


def test_closing_twice_and_serving_again(tiny_path: str) -> None:
    system = engine(tiny_path)
    first = ids_of(list(system.serve(make_requests(2))))
    system.close()
    system.close()
    assert ids_of(list(system.serve(make_requests(2)))) == first


def test_threads_are_set_only_while_the_engine_runs(tiny_path: str) -> None:
    assert torch.get_num_threads() == 1
    system = engine(tiny_path, threads=2)
    assert system.fingerprint()["threads"] == 2
    list(system.serve(make_requests(1)))
    assert torch.get_num_threads() == 1


def test_a_fingerprint_is_json_and_gives_reasons(tiny_bfloat16_path: str) -> None:
    facts = engine(tiny_bfloat16_path, batch_size=3).fingerprint()
    assert json.loads(json.dumps(facts)) == facts
    assert facts["options"]["batch_size"] == 3
    assert facts["dtype"] == "bfloat16"
    assert set(facts["reasons"]) == {"device", "dtype", "threads"}
    assert facts["versions"]["transformers"]
