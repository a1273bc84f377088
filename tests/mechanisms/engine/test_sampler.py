"""Filters against transformers' own, draws against the distribution, bans."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from scipy import stats
from transformers import MinPLogitsWarper, TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from lossguard.records import SamplingParams
from lossguard_mechanisms.engine.counter_random import uniforms
from lossguard_mechanisms.engine.sampler import RowSampling, choose, chosen_ids, drawn_ids, filtered_probabilities

SETTINGS = [
    SamplingParams(max_tokens=1, temperature=0.7),
    SamplingParams(max_tokens=1, temperature=1.3, top_k=5),
    SamplingParams(max_tokens=1, temperature=1.0, top_p=0.6),
    SamplingParams(max_tokens=1, temperature=0.9, min_p=0.1),
    SamplingParams(max_tokens=1, temperature=0.8, top_k=9, top_p=0.8, min_p=0.05),
]


def _logits(num_rows: int, vocab_size: int = 31) -> torch.Tensor:
    return 2.0 * torch.randn(num_rows, vocab_size, generator=torch.Generator().manual_seed(5))


def _theirs(logits: Any, params: SamplingParams) -> torch.Tensor:
    ids: Any = torch.zeros(len(logits), 1, dtype=torch.int64)
    scores = TemperatureLogitsWarper(params.temperature)(ids, logits)
    if params.top_k:
        scores = TopKLogitsWarper(params.top_k)(ids, scores)
    if params.top_p < 1:
        scores = TopPLogitsWarper(params.top_p)(ids, scores)
    if params.min_p:
        scores = MinPLogitsWarper(params.min_p)(ids, scores)
    return torch.softmax(scores, dim=-1)


@pytest.mark.parametrize("params", SETTINGS)
def test_filters_are_those_of_transformers(params: SamplingParams) -> None:
    logits = _logits(40)
    torch.testing.assert_close(filtered_probabilities(logits, [params] * 40), _theirs(logits, params))


def test_filters_of_mixed_rows_are_those_of_each_row() -> None:
    logits = _logits(len(SETTINGS))
    together = filtered_probabilities(logits, SETTINGS)
    alone = [filtered_probabilities(logits[at : at + 1], [params]) for at, params in enumerate(SETTINGS)]
    torch.testing.assert_close(together, torch.cat(alone))


@pytest.mark.parametrize("params", SETTINGS)
def test_draws_follow_the_distribution(params: SamplingParams) -> None:
    num_draws = 4000
    logits = _logits(1)
    rows = [RowSampling(params=params, key=11, position=position) for position in range(num_draws)]
    counts = choose(logits.expand(num_draws, -1), rows).bincount(minlength=logits.shape[1])
    expected = filtered_probabilities(logits, [params])[0].double() * num_draws
    assert int(counts[expected == 0].sum()) == 0
    kept = expected > 0
    scaled = expected[kept] * counts[kept].sum() / expected[kept].sum()
    assert stats.chisquare(counts[kept].numpy(), scaled.numpy()).pvalue > 1e-4


def test_greedy_rows_take_the_best_beside_sampled_ones() -> None:
    logits = _logits(3)
    greedy = RowSampling(params=SamplingParams(max_tokens=1), key=0, position=0)
    sampled = RowSampling(params=SETTINGS[0], key=7, position=3)
    mixed = choose(logits, [greedy, sampled, greedy])
    assert mixed[[0, 2]].tolist() == logits.argmax(-1)[[0, 2]].tolist()
    assert mixed[1:2].tolist() == choose(logits[1:2], [sampled]).tolist()


@pytest.mark.parametrize("vocab_size", [31, 96, 640])
def test_a_draw_is_the_first_token_at_which_the_sum_exceeds_the_number(vocab_size: int) -> None:
    generator = torch.Generator().manual_seed(vocab_size)
    probabilities = torch.randn(2000, vocab_size, generator=generator).mul(3).softmax(-1)
    probabilities[torch.rand(probabilities.shape, generator=generator) < 0.5] = 0.0
    numbers = torch.rand(2000, dtype=torch.float64, generator=generator)
    sums = probabilities.double().cumsum(-1)
    wanted = numbers[:, None] * sums[:, -1:]
    assert drawn_ids(probabilities, numbers).tolist() == (sums > wanted).long().argmax(-1).tolist()


@pytest.mark.parametrize("number", [2.0**-54, 0.5, 1.0 - 2.0**-53, 1.0])
@pytest.mark.parametrize("vocab_size", [7, 64, 128])
def test_no_number_draws_what_is_impossible(number: float, vocab_size: int) -> None:
    for token in range(vocab_size):
        one = torch.zeros(1, vocab_size)
        one[0, token] = 0.3
        assert drawn_ids(one, torch.tensor([number], dtype=torch.float64)).tolist() == [token]


@pytest.mark.parametrize("vocab_size", [384, 301])
def test_a_number_on_a_sum_draws_the_token_behind_it(vocab_size: int) -> None:
    probabilities = torch.zeros(1, vocab_size)
    probabilities[0, 127], probabilities[0, 200], probabilities[0, 300] = 0.5, 0.25, 0.25
    numbers = torch.tensor([0.25, 0.5, 0.6, 0.75, 0.9], dtype=torch.float64)
    drawn = drawn_ids(probabilities.expand(5, -1), numbers)
    assert drawn.tolist() == [127, 200, 200, 300, 300]


def test_rows_on_the_device_choose_what_the_host_has_them_choose() -> None:
    logits = _logits(90, vocab_size=96).bfloat16()
    temperatures = [0.0, 0.7, 1.3] * 30
    rows = [
        RowSampling(params=SamplingParams(max_tokens=1, temperature=value), key=(1 << 62) + at % 4, position=at)
        for at, value in enumerate(temperatures)
    ]
    keys, positions = torch.tensor([row.key for row in rows]), torch.arange(90)
    found = chosen_ids(logits, torch.tensor(temperatures, dtype=torch.float64), uniforms(keys, positions))
    assert found.tolist() == choose(logits, rows).tolist()


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_banned_ids_are_never_chosen(temperature: float) -> None:
    logits = _logits(50)
    banned = tuple(logits.argsort(descending=True)[0, :3].tolist())
    params = SamplingParams(max_tokens=1, temperature=temperature)
    rows = [RowSampling(params=params, key=1, position=at, banned_ids=banned) for at in range(50)]
    chosen = set(choose(logits[:1].expand(50, -1), rows).tolist())
    assert chosen.isdisjoint(banned)
