"""Scores of tiny models against an independent FP64 loop, and agreement between the ways to compute them."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from lossguard.errors import ScorerError, UsageError
from lossguard.scoring.torch_scorer import (
    TorchScorer,
    TorchScorerSpec,
    create_torch_scorer,
    scorer_from_model,
    torch_scorer_factory,
)
from tests.scoring.tiny_models import (
    VOCAB_SIZE,
    Case,
    assert_same_scores,
    make_jobs,
    random_ids,
    reference_logits,
    reference_row,
    tiny_llama,
)


def forked_cases(generator: np.random.Generator, num_cases: int, num_arms: int) -> list[Case]:
    """Prompts of awkward lengths whose arms share a random part of their reply."""
    cases = []
    for _ in range(num_cases):
        shared = random_ids(generator, int(generator.integers(0, 25)))
        tails = [random_ids(generator, int(generator.integers(0 if shared else 1, 16))) for _ in range(num_arms)]
        prompt = random_ids(generator, int(generator.integers(1, 41)))
        cases.append(Case(prompt=prompt, replies=[shared + tail for tail in tails]))
    return cases


def test_gap_and_rank_equal_an_fp64_loop_on_1000_tokens(llama: Any, scorer: TorchScorer) -> None:
    logits_of = reference_logits(llama)
    cases = forked_cases(np.random.default_rng(1), 30, 2)
    arms = scorer.score(make_jobs(cases))
    checked = 0
    for arm, scores in enumerate(arms):
        for index, case in enumerate(cases):
            reply = case.replies[arm]
            logits = logits_of(case.prompt, reply)
            for position, served in enumerate(reply):
                row = int(scores.offsets[index]) + position
                gap, rank, best, logprob = reference_row(logits[position], served)
                assert scores.gap[row] == pytest.approx(gap, abs=2e-5)
                assert (scores.rank[row], scores.best_id[row], scores.served_id[row]) == (rank, best, served)
                assert scores.logprob[row] == pytest.approx(logprob, abs=2e-5)
                top = np.argsort(-logits[position], kind="stable")[: scores.top_ids.shape[1]]
                np.testing.assert_array_equal(scores.top_ids[row], top)
                np.testing.assert_allclose(scores.top_logits[row], logits[position][top], atol=2e-5)
                checked += 1
    assert checked >= 1000


def test_greedy_replies_have_gap_zero_and_rank_zero(llama: Any, scorer: TorchScorer) -> None:
    logits_of = reference_logits(llama)
    prompt, reply = [3, 1, 4, 1, 5], [9]
    for _ in range(12):
        reply = [*reply[:-1], int(np.argmax(logits_of(prompt, reply)[-1])), 0]
    scores = scorer.score(make_jobs([Case(prompt=prompt, replies=[reply[:-1]])]))[0]
    assert not scores.gap.any()
    assert not scores.rank.any()
    np.testing.assert_array_equal(scores.best_id, scores.served_id)


ids = st.lists(st.integers(0, VOCAB_SIZE - 1), max_size=24)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    prompts=st.lists(st.lists(st.integers(0, VOCAB_SIZE - 1), min_size=1, max_size=40), min_size=1, max_size=4),
    shared=ids,
    tails=st.lists(st.lists(ids, min_size=3, max_size=3), min_size=4, max_size=4),
)
def test_sharing_changes_nothing_but_rounding(
    scorer: TorchScorer,
    single_pass_scorer: TorchScorer,
    prompts: list[list[int]],
    shared: list[int],
    tails: list[list[list[int]]],
) -> None:
    cases = [
        Case(prompt=prompt, replies=[shared + tails[index][0], shared + tails[index][0][:9] + tails[index][1], shared])
        for index, prompt in enumerate(prompts)
    ]
    jobs = make_jobs(cases)
    for one, other in zip(scorer.score(jobs), single_pass_scorer.score(jobs), strict=True):
        assert_same_scores(one, other, 2e-5)


def test_identical_replies_have_identical_scores(scorer: TorchScorer) -> None:
    generator = np.random.default_rng(5)
    same, other = random_ids(generator, 30), random_ids(generator, 30)
    jobs = make_jobs([Case(prompt=[1, 2, 3], replies=[same[:8] + other, same, same, same[:12]])])
    _, one, two, short = scorer.score(jobs)
    for name in ("gap", "rank", "logprob", "top_logits"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
        np.testing.assert_array_equal(getattr(one, name)[:12], getattr(short, name))


def test_arms_are_treated_alike(scorer: TorchScorer) -> None:
    jobs = make_jobs(forked_cases(np.random.default_rng(8), 6, 2))
    swapped = [dataclasses.replace(job, outputs=job.outputs[::-1]) for job in jobs]
    for one, other in zip(scorer.score(jobs), scorer.score(swapped)[::-1], strict=True):
        assert_same_scores(one, other, 0.0)


def test_order_of_jobs_does_not_matter(scorer: TorchScorer) -> None:
    jobs = make_jobs(forked_cases(np.random.default_rng(2), 9, 2))
    there = scorer.score(jobs)
    back = scorer.score(jobs[::-1])
    for one, other in zip(there, back, strict=True):
        for index, name in enumerate(one.request_ids):
            place = other.request_ids.index(name)
            mine = one.logprob[one.offsets[index] : one.offsets[index + 1]]
            np.testing.assert_array_equal(mine, other.logprob[other.offsets[place] : other.offsets[place + 1]])


def test_empty_replies_and_replies_of_one_token(scorer: TorchScorer) -> None:
    jobs = make_jobs([Case(prompt=[5], replies=[[], [7]]), Case(prompt=[5, 6], replies=[[8], []])])
    first, second = scorer.score(jobs)
    assert first.offsets.tolist() == [0, 0, 1]
    assert second.offsets.tolist() == [0, 1, 1]
    assert first.finite.all()
    assert first.served_id.tolist() == [8]


def test_ids_that_do_not_exist(scorer: TorchScorer) -> None:
    jobs = make_jobs([Case(prompt=[5, 6], replies=[[8, VOCAB_SIZE, 9, 10], [8, 9, 9, 10]])])
    bad, good = scorer.score(jobs)
    assert bad.gap[1] == np.inf
    assert bad.rank[1] == VOCAB_SIZE
    assert bad.logprob[1] == -np.inf
    assert bad.best_id[1] == good.best_id[1]
    assert bad.finite.tolist() == [True, True, False, False]
    assert bad.rank[2:].tolist() == [-1, -1]
    assert bad.gap[2:].tolist() == [0.0, 0.0]
    assert bad.served_id.tolist() == [8, VOCAB_SIZE, 9, 10]
    assert good.finite.all()


def test_nan_and_infinite_logits_are_reported(llama: Any) -> None:
    model = tiny_llama(tie_word_embeddings=False)
    model.load_state_dict(llama.state_dict(), strict=False)
    scorer = scorer_from_model(model, TorchScorerSpec(model_path=""))
    assert scorer._head is not None
    scorer._head._weight[17] = np.inf
    scores = scorer.score(make_jobs([Case(prompt=[1, 2], replies=[[3, 17, 4]])]))[0]
    assert not scores.finite.any()
    assert not scores.gap.any()
    assert (scores.best_id == -1).all()
    for name in ("gap", "logprob", "best_logit", "top_logits"):
        assert np.isfinite(getattr(scores, name)).all()


def test_equal_logits_are_ranked_by_lower_id() -> None:
    model = tiny_llama(tie_word_embeddings=False)
    model.lm_head.weight.data[300:310] = model.lm_head.weight.data[100]
    scorer = scorer_from_model(model, TorchScorerSpec(model_path=""))
    reply = [100, *range(300, 310)]
    jobs = make_jobs([Case(prompt=[1, 2], replies=[[served] for served in reply])])
    ranks = [int(scores.rank[0]) for scores in scorer.score(jobs)]
    assert ranks == list(range(ranks[0], ranks[0] + len(reply)))


def test_vocabulary_that_is_no_multiple_of_a_tile(monkeypatch: pytest.MonkeyPatch, llama: Any) -> None:
    jobs = make_jobs(forked_cases(np.random.default_rng(3), 6, 2))
    expected = scorer_from_model(llama, TorchScorerSpec(model_path="")).score(jobs)
    from lossguard.scoring import torch_scorer
    from lossguard.scoring.head_columns import TileSizes

    monkeypatch.setattr(
        torch_scorer, "tile_sizes", lambda *_: TileSizes(vocab_tile=37, tile_rows=4, dense_rows=3, dense_part=2)
    )
    got = scorer_from_model(llama, TorchScorerSpec(model_path="")).score(jobs)
    for one, other in zip(expected, got, strict=True):
        assert_same_scores(one, other, 1e-5)


def test_progress_counts_every_token_even_those_that_cannot_be_scored(scorer: TorchScorer) -> None:
    seen: list[int] = []
    jobs = make_jobs([*forked_cases(np.random.default_rng(4), 5, 3), Case(prompt=[1], replies=[[-1, 2], [1], []])])
    arms = scorer.score(jobs, progress=seen.append)
    assert sum(seen) == sum(scores.num_tokens for scores in arms)


def test_columns_have_the_declared_dtypes(scorer: TorchScorer) -> None:
    scores = scorer.score(make_jobs([Case(prompt=[1], replies=[[2, 3]])]))[0]
    assert scores.entropy is None
    dtypes = {name: str(getattr(scores, name).dtype) for name in ("gap", "rank", "top_ids", "finite", "offsets")}
    assert dtypes == {"gap": "float32", "rank": "int32", "top_ids": "int32", "finite": "bool", "offsets": "int64"}


def test_prompts_that_cannot_be_run_are_refused(scorer: TorchScorer) -> None:
    with pytest.raises(ScorerError, match="LG0502"):
        scorer.score(make_jobs([Case(prompt=[], replies=[[1]])]))
    with pytest.raises(ScorerError, match="LG0502"):
        scorer.score(make_jobs([Case(prompt=[VOCAB_SIZE], replies=[[1]])]))


def test_misaligned_jobs_are_refused(scorer: TorchScorer) -> None:
    jobs = make_jobs([Case(prompt=[1], replies=[[1]]), Case(prompt=[1], replies=[[1], [2]])])
    with pytest.raises(ScorerError, match="LG0506"):
        scorer.score(jobs)


def test_loads_a_folder_and_reports_its_choices(tmp_path: Path, llama: Any, scorer: TorchScorer) -> None:
    llama.save_pretrained(tmp_path)
    loaded = torch_scorer_factory(str(tmp_path), {"device": "cpu", "threads": 1, "token_budget": 96})
    jobs = make_jobs(forked_cases(np.random.default_rng(6), 3, 2))
    for one, other in zip(loaded.score(jobs), scorer.score(jobs), strict=True):
        assert_same_scores(one, other, 0.0)
    facts = loaded.fingerprint()
    assert facts["share_prefixes"] is True
    assert facts["head_product"] == "fp32"
    assert facts["dtype"] == "float32"
    assert loaded.vocab_size == VOCAB_SIZE
    loaded.close()
    loaded.close()
    with pytest.raises(ScorerError, match="closed"):
        loaded.score(jobs)


def test_a_missing_folder_is_refused() -> None:
    with pytest.raises(ScorerError, match="LG0503"):
        create_torch_scorer(TorchScorerSpec(model_path="/nowhere"))


@pytest.mark.parametrize(
    ("options", "hint"),
    [
        ({"share_prefix": True}, "Did you mean 'share_prefixes'"),
        ({"dtype": "bfloat"}, "Did you mean 'bfloat16'"),
        ({"device": "gpu"}, "Known"),
        ({"top_k": 1}, "2 or more"),
        ({"top_k": True}, "use a int"),
        ({"threads": 0}, "positive"),
        ({"token_budget": "many"}, "use a int"),
    ],
)
def test_unknown_options_are_refused(options: dict[str, object], hint: str) -> None:
    with pytest.raises(UsageError, match=hint):
        torch_scorer_factory("/nowhere", options)


def test_too_many_top_tokens_are_refused(llama: Any) -> None:
    with pytest.raises(ScorerError, match="top_k 512"):
        scorer_from_model(llama, TorchScorerSpec(model_path="", top_k=VOCAB_SIZE))


def test_a_job_given_twice_is_refused(scorer: TorchScorer) -> None:
    job = make_jobs([Case(prompt=[1], replies=[[1]])])[0]
    with pytest.raises(ScorerError, match="1 request ids"):
        scorer.score([job, dataclasses.replace(job)])
