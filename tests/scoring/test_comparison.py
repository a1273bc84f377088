"""The noise between two scorings is that of a direct loop, and other tokens are refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import UsageError
from lossguard.records import ForcedScores
from lossguard.scoring.comparison import scorer_noise


def scores(gaps: list[float], name: str = "a", best: list[int] | None = None, finite: bool = True) -> ForcedScores:  # noqa: FBT001, FBT002
    count = len(gaps)
    gap = np.array(gaps, dtype=np.float32)
    return ForcedScores(
        request_ids=(name,),
        offsets=np.array([0, count]),
        served_id=np.arange(count, dtype=np.int32),
        gap=gap,
        best_logit=np.zeros(count, dtype=np.float32),
        rank=np.zeros(count, dtype=np.int32),
        best_id=np.array(best or [7] * count, dtype=np.int32),
        logprob=-2 * gap,
        top_ids=np.zeros((count, 2), dtype=np.int32),
        top_logits=np.stack([np.zeros(count), -np.ones(count)], axis=1).astype(np.float32),
        finite=np.full(count, finite),
    )


@given(st.lists(st.tuples(st.floats(0, 5, width=32), st.floats(0, 5, width=32)), min_size=1, max_size=40))
def test_differences_are_those_of_a_loop(pairs: list[tuple[float, float]]) -> None:
    first, second = [one for one, _ in pairs], [other for _, other in pairs]
    noise = scorer_noise([scores(first)], [scores(second)])
    apart = [abs(float(np.float32(one)) - float(np.float32(other))) for one, other in pairs]
    assert noise.gap.max_nats == pytest.approx(max(apart))
    assert noise.gap.rms_nats == pytest.approx(float(np.sqrt(np.mean(np.square(apart)))))
    assert noise.gap.p999_nats <= noise.gap.max_nats
    assert noise.logprob.max_nats == pytest.approx(2 * max(apart))
    assert noise.worst[0][1] == int(np.argmax(apart))
    assert noise.num_compared == len(pairs)


def test_another_best_token_is_counted_and_its_tie_shown() -> None:
    noise = scorer_noise([scores([0, 0, 0], best=[1, 2, 3])], [scores([0, 0, 0], best=[1, 9, 3])])
    assert noise.num_other_best == 1
    assert noise.other_best_share == pytest.approx(1 / 3)
    assert noise.other_best_nats == 1.0


def test_positions_that_one_cannot_score_are_counted_and_not_compared() -> None:
    unknown = scores([0.0, float("inf")])
    noise = scorer_noise([scores([0.0, 4.0])], [unknown])
    assert (noise.num_tokens, noise.num_compared, noise.num_one_sided) == (2, 1, 1)
    both = scorer_noise([unknown], [unknown])
    assert (both.num_compared, both.num_one_sided) == (1, 0)
    nothing = scorer_noise([scores([1.0])], [scores([1.0], finite=False)])
    assert (nothing.num_compared, nothing.num_one_sided, nothing.gap.max_nats) == (0, 1, 0.0)


def test_several_parts_are_pooled_and_named() -> None:
    noise = scorer_noise([scores([0.0]), scores([0.0, 0.0], "b")], [scores([0.0]), scores([0.0, 0.5], "b")])
    assert noise.worst[0] == ("b", 1, 0.0, 0.5)
    assert noise.num_tokens == 3


def test_other_tokens_are_refused() -> None:
    other_token = dataclasses.replace(scores([0.0]), served_id=np.array([3], dtype=np.int32))
    for other in (other_token, scores([0.0], "b"), scores([0.0, 0.0])):
        with pytest.raises(UsageError, match="LG0517"):
            scorer_noise([scores([0.0])], [other])
