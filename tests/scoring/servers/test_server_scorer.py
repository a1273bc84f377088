"""Scores through a server equal the target's own, as far as log-probabilities tell, and nothing else is made up."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lossguard.engines.servers.problems import MalformedReplyError
from lossguard.errors import EngineError, ScorerError, UsageError
from lossguard.records import FinishReason, Request, SamplingParams, ServedOutput
from lossguard.scoring.base import ScoringJob, capabilities_of
from lossguard.scoring.registry import scorer_factory
from lossguard.scoring.servers.rows import PositionLogprobs, RowRules, columns_of
from lossguard.scoring.servers.scorer import ServerScorer
from tests.gate.toy import VOCAB_SIZE, ToyScorer, ToyTarget, write_model
from tests.scoring.servers.scoring_loopback import Fault, Reply, ScoringLoopback

KINDS = ("sglang", "vllm")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(write_model(tmp_path_factory.mktemp("toy") / "model"))


def make(kind: str, model: str, url: str, **options: Any) -> ServerScorer:
    dtype = {"logit_dtype": "float32"} if kind == "vllm" else {}
    made = scorer_factory(kind)(model, {"url": url, **dtype, **options})
    assert isinstance(made, ServerScorer)
    return made


def job(name: str, *replies: tuple[int, ...], sampling: SamplingParams | None = None) -> ScoringJob:
    request = Request(
        id=name, prompt_ids=(5, 6, 7), sampling=sampling or SamplingParams(max_tokens=8), set="s", cluster=name
    )
    outputs = tuple(ServedOutput(request_id=name, ids=ids, finish_reason=FinishReason.LENGTH) for ids in replies)
    return ScoringJob(request=request, outputs=outputs)


def best_after(ids: list[int], rank: int = 0) -> int:
    return int(np.argsort(-ToyTarget().logits(ids), kind="stable")[rank])


def greedy(count: int, *, worst_at: int | None = None) -> tuple[int, ...]:
    ids = [5, 6, 7]
    for position in range(count):
        ids.append(best_after(ids, rank=60 if position == worst_at else 0))
    return tuple(ids[3:])


@pytest.mark.parametrize("kind", KINDS)
def test_scores_equal_the_targets_own(kind: str, model: str) -> None:
    jobs = [job("a", greedy(6), greedy(6, worst_at=2)), job("b", (9, 9, 9), (9, 9, 9)), job("c", (), greedy(1))]
    expected = ToyScorer(ToyTarget()).score(jobs)
    with ScoringLoopback(kind) as server:
        scorer = make(kind, model, server.url)
        scored: list[int] = []
        found = scorer.score(jobs, progress=scored.append)
        scorer.close()
    for ours, theirs in zip(found, expected, strict=True):
        assert ours.request_ids == theirs.request_ids
        assert ours.offsets.tolist() == theirs.offsets.tolist()
        assert ours.served_id.tolist() == theirs.served_id.tolist()
        assert ours.best_id.tolist() == theirs.best_id.tolist()
        assert ours.finite.all()
        np.testing.assert_allclose(ours.gap, theirs.gap, atol=1e-5)
        np.testing.assert_allclose(ours.logprob, theirs.logprob, atol=1e-5)
        assert ours.top_ids[:, :5].tolist() == theirs.top_ids.tolist()
        relative = theirs.top_logits - theirs.top_logits[:, :1]
        np.testing.assert_allclose(ours.top_logits[:, :5], relative, atol=1e-5)
        assert (ours.best_logit == 0).all(), "the magnitude of logits is not told"
    assert sum(scored) == sum(len(output.ids) for item in jobs for output in item.outputs)
    assert len(server.bodies) == 4, "equal replies are sent once, empty ones never"


def test_ranks_outside_the_list_are_exact_with_vllm_and_lower_bounds_with_sglang(model: str) -> None:
    jobs = [job("a", greedy(4, worst_at=1))]
    exact = ToyScorer(ToyTarget()).score(jobs)[0].rank.tolist()
    assert exact[1] == 60
    for kind, expected in (("vllm", exact), ("sglang", [exact[0], 20, *exact[2:]])):
        with ScoringLoopback(kind) as server:
            scorer = make(kind, model, server.url)
            assert scorer.score(jobs)[0].rank.tolist() == expected
            assert scorer.capabilities.num_ranked == (None if kind == "vllm" else 20)
            assert not scorer.capabilities.logits


@pytest.mark.parametrize("kind", KINDS)
def test_an_id_that_does_not_exist_has_no_score_and_ends_the_reply(kind: str, model: str) -> None:
    known = greedy(2)
    with ScoringLoopback(kind) as server:
        scores = make(kind, model, server.url).score([job("a", (*known, VOCAB_SIZE + 3, 4))])[0]
    assert scores.gap.tolist()[:2] == pytest.approx([0.0, 0.0], abs=1e-6)
    assert math.isinf(scores.gap[2])
    assert scores.rank[2] == VOCAB_SIZE
    assert scores.best_id[2] == best_after([5, 6, 7, *known])
    assert scores.finite.tolist() == [True, True, True, False]
    assert scores.served_id.tolist()[2:] == [VOCAB_SIZE + 3, 4]
    sent = server.bodies[0]["input_ids" if kind == "sglang" else "prompt"]
    assert len(sent) == 6
    assert max(sent) < VOCAB_SIZE


def test_sglang_starts_at_the_reply_only_where_no_cache_can_be_read(model: str) -> None:
    for disabled, start in ((False, 0), (True, 2)):
        with ScoringLoopback("sglang") as server:
            server.info["disable_radix_cache"] = disabled
            scorer = make("sglang", model, server.url)
            scores = scorer.score([job("a", greedy(3))])[0]
        assert server.bodies[0]["logprob_start_len"] == start
        assert scores.gap.tolist() == pytest.approx([0, 0, 0], abs=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_rounded_head_is_refused_unless_it_was_asked_for(kind: str, model: str) -> None:
    with ScoringLoopback(kind) as server:
        server.info |= {"enable_fp32_lm_head": False}
        options = {"logit_dtype": "bfloat16"}
        with pytest.raises(ScorerError, match="LG0515"):
            make(kind, model, server.url, **options)
        scorer = make(kind, model, server.url, rounded_head=True, **options)
        assert scorer.fingerprint()["fp32_head"] is False
    assert server.bodies == []


def test_sampled_requests_are_refused(model: str) -> None:
    with ScoringLoopback("vllm") as server:
        scorer = make("vllm", model, server.url)
        with pytest.raises(UsageError, match="LG0516"):
            scorer.score([job("a", (1, 2), sampling=SamplingParams(max_tokens=2, temperature=1.0))])
    assert not capabilities_of(scorer_factory("vllm")).sampled
    assert server.bodies == []


def test_parameters_that_change_the_best_token_are_marked_as_not_replayed(model: str) -> None:
    penalised = SamplingParams(max_tokens=2, repetition_penalty=1.3)
    with ScoringLoopback("vllm") as server:
        scores = make("vllm", model, server.url).score([job("a", (1, 2)), job("b", (1, 2), sampling=penalised)])[0]
    assert scores.replayed is not None
    assert scores.replayed.tolist() == [True, True, False, False]


@pytest.mark.parametrize(
    ("options", "found"),
    [
        ({"url": "http://127.0.0.1:1", "top_q": 3}, "top_k"),
        ({"url": "http://127.0.0.1:1", "top_k": 1}, "from 2 to 20"),
        ({"url": "http://127.0.0.1:1", "top_k": True}, "from 2 to 20"),
        ({"url": "http://127.0.0.1:1", "rounded_head": 1}, "true or false"),
        ({"url": "http://127.0.0.1:1", "stream": True}, "unknown option 'stream'"),
        ({"url": "http://127.0.0.1:1", "launch": "x"}, "exactly one of url"),
        ({}, "exactly one of url"),
    ],
)
def test_options_that_do_not_fit(options: dict[str, Any], found: str, model: str) -> None:
    with pytest.raises(UsageError, match=found) as caught:
        scorer_factory("sglang")(model, options)
    assert caught.value.code == "LG0513"
    assert "[scorer]" in caught.value.fix


def _sglang_meta(change: Callable[[dict[str, Any]], None]) -> Fault:
    def fault(reply: Reply) -> Reply:
        change(reply["meta_info"])
        return reply

    return fault


def _vllm_choice(change: Callable[[dict[str, Any]], None]) -> Fault:
    def fault(reply: Reply) -> Reply:
        change(reply["choices"][0])
        return reply

    return fault


def _other_token(rows: list[list[Any]]) -> None:
    rows[-1][1] = 1 if rows[-1][1] != 1 else 2


def _repeat(rows: list[list[list[Any]]]) -> None:
    rows[-1][1] = rows[-1][0]


def _outside(rows: list[list[list[Any]]]) -> None:
    rows[-1][-1][1] = VOCAB_SIZE


def _shift(rows: list[list[list[Any]]]) -> None:
    for entry in rows[-1]:
        entry[0] += 30.0


SGLANG_FAULTS: dict[str, Fault] = {
    "no log-probabilities": _sglang_meta(lambda meta: meta.pop("input_token_logprobs")),
    "no best tokens": _sglang_meta(lambda meta: meta.pop("input_top_logprobs")),
    "truncated": _sglang_meta(lambda meta: meta["input_token_logprobs"].pop()),
    "truncated best": _sglang_meta(lambda meta: meta["input_top_logprobs"].pop()),
    "one too many": _sglang_meta(lambda meta: meta["input_token_logprobs"].append([-1.0, 3, None])),
    "short list of best": _sglang_meta(lambda meta: meta["input_top_logprobs"][-1].pop()),
    "null row of best": _sglang_meta(lambda meta: meta["input_top_logprobs"].__setitem__(-1, None)),
    "another token": _sglang_meta(lambda meta: _other_token(meta["input_token_logprobs"])),
    "wrong count": _sglang_meta(lambda meta: meta.update(prompt_tokens=meta["prompt_tokens"] - 1)),
    "repeated best": _sglang_meta(lambda meta: _repeat(meta["input_top_logprobs"])),
    "best outside the vocabulary": _sglang_meta(lambda meta: _outside(meta["input_top_logprobs"])),
    "two values for a token": _sglang_meta(lambda meta: meta["input_token_logprobs"][-1].__setitem__(0, -9.0)),
    "logits": _sglang_meta(lambda meta: _shift(meta["input_top_logprobs"])),
    "an error": lambda _reply: {"error": {"message": "out of memory"}},
    "no object": lambda _reply: {"detail": 1},
}
VLLM_FAULTS: dict[str, Fault] = {
    "no log-probabilities": _vllm_choice(lambda choice: choice.update(prompt_logprobs=None)),
    "truncated": _vllm_choice(lambda choice: choice["prompt_logprobs"].pop()),
    "null row": _vllm_choice(lambda choice: choice["prompt_logprobs"].__setitem__(-1, None)),
    "served token missing": _vllm_choice(
        lambda choice: choice["prompt_logprobs"][-1].pop(str(choice["prompt_token_ids"][-1]))
    ),
    "short list of best": _vllm_choice(lambda choice: choice["prompt_logprobs"][-1].popitem()),
    "another prompt": _vllm_choice(lambda choice: choice["prompt_token_ids"].__setitem__(0, 1)),
    "no prompt": _vllm_choice(lambda choice: choice.pop("prompt_token_ids")),
    "odd key": _vllm_choice(
        lambda choice: choice["prompt_logprobs"][-1].update({"token": choice["prompt_logprobs"][-1].popitem()[1]})
    ),
    "rank 0": _vllm_choice(
        lambda choice: choice["prompt_logprobs"][-1][str(choice["prompt_token_ids"][-1])].update(rank=0)
    ),
    "two choices": lambda reply: {**reply, "choices": reply["choices"] * 2},
}
FAULTS = [("sglang", name) for name in SGLANG_FAULTS] + [("vllm", name) for name in VLLM_FAULTS]


@pytest.mark.parametrize(("kind", "name"), FAULTS)
def test_an_unusable_reply_is_an_error_and_no_score(kind: str, name: str, model: str) -> None:
    fault = (SGLANG_FAULTS if kind == "sglang" else VLLM_FAULTS)[name]
    with ScoringLoopback(kind, fault=fault) as server:
        scorer = make(kind, model, server.url)
        with pytest.raises(ScorerError) as caught:
            scorer.score([job("a", greedy(3))])
    assert caught.value.code == "LG0514"
    assert "'a'" in caught.value.found


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), -9999.0, None])
def test_values_that_are_no_numbers_make_a_position_not_finite(value: float | None, model: str) -> None:
    def fault(reply: Reply) -> Reply:
        reply["meta_info"]["input_token_logprobs"][-1][0] = value
        reply["meta_info"]["input_top_logprobs"][-1][0][0] = value
        return reply

    with ScoringLoopback("sglang", fault=fault) as server:
        scores = make("sglang", model, server.url).score([job("a", greedy(3))])[0]
    assert scores.finite.tolist() == [True, True, False]
    assert scores.rank[2] == -1
    assert np.isfinite(scores.gap).all()


def test_a_server_that_refuses_is_not_asked_twice(model: str) -> None:
    with ScoringLoopback("vllm") as server:
        scorer = make("vllm", model, server.url, model_name="toy")
        server.is_down = True
        with pytest.raises(EngineError, match="LG0222"):
            scorer.score([job("a", greedy(3))])
    assert len(server.bodies) == 1


def test_requests_are_sent_together(model: str) -> None:
    with ScoringLoopback("sglang") as server:
        server.delay = 0.05
        scorer = make("sglang", model, server.url, concurrency=4)
        scorer.score([job(f"r{number}", greedy(2)) for number in range(12)])
    assert server.most_at_once == 4


def test_a_launched_server_scores_logs_and_ends(model: str, tmp_path: Path) -> None:
    factory = scorer_factory("sglang")
    launch = [sys.executable, "-m", "tests.scoring.servers.scoring_loopback", "sglang", "{port}"]
    placed = factory.in_folder(tmp_path / "scorer-server")  # type: ignore[attr-defined]
    path = {"PYTHONPATH": os.pathsep.join(sys.path)}
    scorer = placed(model, {"launch": launch, "env": path, "start_seconds": 30})
    expected = ToyScorer(ToyTarget()).score([job("a", greedy(3))])[0]
    found = scorer.score([job("a", greedy(3))])[0]
    np.testing.assert_allclose(found.gap, expected.gap, atol=1e-5)
    assert (tmp_path / "scorer-server" / "server.log").is_file()
    facts = scorer.fingerprint()
    assert facts["server"]["/server_info enable_fp32_lm_head"] == "true"
    scorer.close()
    scorer.close()


@settings(max_examples=200)
@given(
    logits=st.lists(st.floats(-20, 20, width=32), min_size=8, max_size=8),
    token=st.integers(0, 7),
)
def test_columns_follow_from_any_logits(logits: list[float], token: int) -> None:
    """Gap, best token and rank from log-probabilities equal those from the logits; offsets change nothing."""
    values = np.array(logits, dtype=np.float64)
    logprobs = values - np.logaddexp.reduce(values)
    order = sorted(range(8), key=lambda item: (-logprobs[item], item))
    row = PositionLogprobs(
        token=token,
        logprob=float(logprobs[token]),
        top=tuple((item, float(logprobs[item])) for item in order[:4]),
        rank=order.index(token),
    )
    found = columns_of([row], RowRules(top_k=4, vocab_size=8))
    assert found["gap"][0] == pytest.approx(values.max() - values[token], abs=1e-9)
    assert found["gap"][0] >= 0
    assert found["rank"][0] == order.index(token)
    assert found["top_ids"][0].tolist() == order[:4]
    assert found["best_id"][0] == order[0]


@settings(max_examples=300)
@given(
    top=st.lists(st.tuples(st.integers(-1, 8), st.floats(allow_nan=True, allow_infinity=True)), max_size=6),
    value=st.floats(allow_nan=True, allow_infinity=True),
    token=st.integers(0, 7),
)
def test_any_row_is_refused_or_not_finite_or_a_distribution(
    top: list[tuple[int, float]], value: float, token: int
) -> None:
    row = PositionLogprobs(token=token, logprob=value, top=tuple(top))
    try:
        found = columns_of([row], RowRules(top_k=3, vocab_size=8))
    except MalformedReplyError:
        return
    assert found["gap"][0] >= 0
    assert np.isfinite(found["gap"][0])
    if found["finite"][0]:
        assert np.exp([item for _, item in top]).sum() <= 1.01
