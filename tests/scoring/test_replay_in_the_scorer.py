"""The torch scorer with parameters: what ``generate`` serves under them is best, along any prefix tree."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from lossguard.errors import ScorerError
from lossguard.records import ForcedScores, SamplingParams
from lossguard.scoring import torch_scorer
from lossguard.scoring.columns import concat_scores, load_scores, save_scores, select
from lossguard.scoring.spec import TorchScorerSpec
from lossguard.scoring.torch_scorer import TorchScorer, scorer_from_model
from tests.scoring.tiny_models import VOCAB_SIZE, Case, make_jobs, random_ids, reference_logits, tiny_llama

ASKED = SamplingParams(
    max_tokens=24,
    stop_ids=(3,),
    min_tokens=4,
    repetition_penalty=1.4,
    presence_penalty=0.5,
    frequency_penalty=0.3,
    logit_bias=((7, 2.0), (9, -3.0)),
    bad_words=((11,), (5, 6)),
)


@pytest.fixture(scope="module")
def llama() -> Any:
    return tiny_llama()


@pytest.fixture(scope="module")
def scorer(llama: Any) -> TorchScorer:
    return scorer_from_model(llama, TorchScorerSpec(model_path="unused"))


def generated(llama: Any, prompt: Sequence[int], **options: Any) -> list[int]:
    tokens = torch.tensor([prompt])
    found = llama.generate(tokens, max_new_tokens=24, do_sample=False, pad_token_id=0, **options)
    ids: list[int] = found[0, len(prompt) :].tolist()
    return ids


@pytest.mark.parametrize(
    ("sampling", "options"),
    [
        (SamplingParams(max_tokens=24, repetition_penalty=1.8), {"repetition_penalty": 1.8}),
        (SamplingParams(max_tokens=24, bad_words=((4,), (8, 9))), {"bad_words_ids": [[4], [8, 9]]}),
        (SamplingParams(max_tokens=24, logit_bias=((6, 9.0),)), {"sequence_bias": [[[6], 9.0]]}),
    ],
)
def test_what_is_served_with_parameters_is_best_and_without_them_is_not(
    llama: Any, scorer: TorchScorer, sampling: SamplingParams, options: dict[str, Any]
) -> None:
    generator = np.random.default_rng(4)
    prompts = [random_ids(generator, 12) for _ in range(4)]
    cases = [
        Case(prompt=prompt, replies=[generated(llama, prompt, **options), generated(llama, prompt)], sampling=sampling)
        for prompt in prompts
    ]
    honoured, ignored = scorer.score(make_jobs(cases))
    assert float(honoured.gap.max()) < 1e-3
    assert (honoured.rank == 0).all()
    assert honoured.replayed is not None
    assert honoured.replayed.all()
    if "bad_words_ids" not in options:
        assert honoured.plain_gap is not None
        assert float(honoured.plain_gap.max()) > 0.1, "the parameters changed something"
        assert float(ignored.gap.max()) > 0.1
    assert ignored.plain_gap is not None
    assert float(ignored.plain_gap.max()) < 1e-3


def changed(logits: np.ndarray[Any, Any], prompt: Sequence[int], before: Sequence[int]) -> np.ndarray[Any, Any]:
    """``ASKED`` in a plain loop in FP64."""
    found = logits.copy()
    for token, bias in ASKED.logit_bias:
        found[token] += bias
    for token in {*prompt, *before}:
        found[token] = found[token] / 1.4 if found[token] > 0 else found[token] * 1.4
    for token in set(before):
        found[token] -= 0.3 * list(before).count(token) + 0.5
    found[11] = -np.inf
    if [*prompt, *before][-1] == 5:
        found[6] = -np.inf
    if len(before) < ASKED.min_tokens:
        found[3] = -np.inf
    return found


def test_every_column_equals_a_loop_along_a_tree_of_arms(llama: Any, scorer: TorchScorer) -> None:
    generator = np.random.default_rng(5)
    cases = []
    for _ in range(3):
        prompt, base = random_ids(generator, 9), random_ids(generator, 40)
        tails = [[5, 6, *random_ids(generator, 8)], [11, 3, *random_ids(generator, 6)]]
        cases.append(
            Case(prompt=prompt, replies=[base[:30], base[:20] + tails[0], base[:2] + tails[1]], sampling=ASKED)
        )
    logits_of = reference_logits(llama)
    for arm, scores in enumerate(scorer.score(make_jobs(cases))):
        for index, case in enumerate(cases):
            check_reply(scores, index, case, arm, logits_of(case.prompt, case.replies[arm]))


def check_reply(scores: ForcedScores, index: int, case: Case, arm: int, logits: np.ndarray[Any, Any]) -> None:
    reply, start = case.replies[arm], int(scores.offsets[index])
    assert scores.plain_gap is not None
    assert scores.plain_best_id is not None
    for position, token in enumerate(reply):
        at, plain = start + position, logits[position]
        own = changed(plain, case.prompt, reply[:position])
        assert scores.best_id[at] == int(np.argmax(own))
        assert scores.gap[at] == pytest.approx(own.max() - own[token], abs=1e-4)
        assert scores.plain_gap[at] == pytest.approx(plain.max() - plain[token], abs=1e-4)
        assert scores.plain_best_id[at] == int(np.argmax(plain))
        assert scores.logprob[at] == pytest.approx(plain[token] - np.logaddexp.reduce(plain), abs=1e-4)
        assert scores.rank[at] == (own > own[token]).sum() + (own[:token] == own[token]).sum()
        np.testing.assert_allclose(scores.top_logits[at], np.sort(own)[::-1][:5], rtol=0, atol=1e-4)


def test_requests_without_parameters_keep_their_scores(llama: Any, scorer: TorchScorer, tmp_path: Path) -> None:
    generator = np.random.default_rng(6)
    plain = Case(prompt=random_ids(generator, 8), replies=[random_ids(generator, 10)])
    asking = Case(prompt=random_ids(generator, 8), replies=[random_ids(generator, 10)], sampling=ASKED)
    (alone,) = scorer.score(make_jobs([plain]))
    (together,) = scorer.score(make_jobs([plain, asking]))
    assert alone.replayed is None
    assert together.replayed is not None
    assert together.plain_gap is not None
    np.testing.assert_allclose(together.gap[:10], alone.gap, rtol=0, atol=1e-5)
    np.testing.assert_array_equal(together.plain_gap[:10], together.gap[:10])
    assert together.replayed.all()
    save_scores(tmp_path / "s.safetensors", together)
    back = load_scores(tmp_path / "s.safetensors")
    np.testing.assert_array_equal(back.plain_gap, together.plain_gap)
    only = select(back, ["r1"])
    assert only.replayed is not None
    assert len(only.replayed) == 10
    other = make_jobs([plain, plain])[1:]
    joined = concat_scores([select(back, ["r0"]), scorer.score(other)[0]])
    assert joined.replayed is not None
    assert joined.replayed.tolist() == [True] * 20


def test_ids_that_do_not_exist_end_the_replay(scorer: TorchScorer) -> None:
    reply = [20, VOCAB_SIZE + 3, 21]
    (scores,) = scorer.score(make_jobs([Case(prompt=[1, 2, 4], replies=[reply], sampling=ASKED)]))
    assert scores.plain_gap is not None
    assert scores.replayed is not None
    assert np.isinf(scores.plain_gap[1])
    assert np.isinf(scores.gap[1])
    assert scores.finite.tolist() == [True, True, False]
    assert not scores.replayed[2]


def test_sampled_columns_follow_the_parameters(scorer: TorchScorer) -> None:
    sampling = SamplingParams(max_tokens=8, temperature=1.0, bad_words=((11,),), presence_penalty=1.0)
    reply = [20, 11, 22]
    jobs = make_jobs([Case(prompt=[1, 2, 4], replies=[reply], sampling=sampling)])
    (scores,) = scorer.score(jobs)
    assert scores.in_support is not None
    assert scores.in_support.tolist() == [True, False, True]
    for name in ("entropy", "surprisal_variance", "pit_low", "pit_high"):
        assert np.isfinite(getattr(scores, name)).all(), name
    assert np.isinf(scores.gap[1])


def test_a_grammar_without_masks_is_not_replayed(scorer: TorchScorer) -> None:
    sampling = SamplingParams(max_tokens=8, grammar="regex:[ab]+")
    (scores,) = scorer.score(make_jobs([Case(prompt=[1, 2], replies=[[4, 5]], sampling=sampling)]))
    assert scores.replayed is not None
    assert not scores.replayed.any()
    sampled = SamplingParams(max_tokens=8, grammar="regex:[ab]+", temperature=1.0)
    with pytest.raises(ScorerError, match="grammar that cannot be replayed"):
        scorer.score(make_jobs([Case(prompt=[1, 2], replies=[[4, 5]], sampling=sampled)]))


def test_a_grammar_is_walked_once_along_shared_prefixes(llama: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    class Walk:
        def allowed(self, prefix: Sequence[int]) -> np.ndarray[Any, Any] | None:
            mask = np.zeros(VOCAB_SIZE, dtype=np.bool_)
            mask[100 + len(prefix)] = True  # only one token is ever allowed
            return mask if list(prefix) == list(range(100, 100 + len(prefix))) else None

    class Masks:
        def walk(self, _grammar: str, _stop_ids: Sequence[int]) -> Walk:
            return Walk()

    monkeypatch.setattr(torch_scorer, "load_grammar_masks", lambda _path, _size: Masks())
    own = scorer_from_model(llama, TorchScorerSpec(model_path="unused", convention="vllm"))
    assert own.fingerprint()["convention"] == "vllm"
    replies = [list(range(100, 124)), [*range(100, 110), 7, 8]]
    sampling = SamplingParams(max_tokens=24, grammar="regex:x")
    inside, outside = own.score(make_jobs([Case(prompt=[1, 2], replies=replies, sampling=sampling)]))
    assert inside.replayed is not None
    assert outside.replayed is not None
    assert inside.replayed.all()
    assert float(inside.gap.max()) == 0.0
    assert outside.replayed.tolist() == [True] * 11 + [False]
    assert np.isinf(outside.gap).tolist() == [False] * 10 + [True, False]
    assert np.isneginf(inside.top_logits[:, 1]).all()
