"""Timed replies against judged replies."""

from __future__ import annotations

import numpy as np
import pytest

from lossguard.records import FinishReason, ServedOutput
from lossguard.stages.timing.diverging import (
    Diverging,
    diverging_of,
    diverging_outputs,
    is_far_above,
    unjudged_replies,
)
from lossguard.stages.timing.pair_times import MeasuredPair


def share(number: int, compared: int = 96) -> Diverging:
    return Diverging(number=number, compared=compared)


@pytest.mark.parametrize(
    ("found", "itself", "judged", "words"),
    [
        (share(0), share(0), None, None),
        (share(3), share(2), None, None),
        (share(96), share(0), None, "judge them"),
        (share(96), None, None, "judge them"),
        (share(96), share(0), share(2, 220), "not what is judged"),
        (share(40), share(0), share(90, 220), None),
        (share(40), share(38), share(0, 220), None),
    ],
)
def test_timed_replies_need_a_witness(
    found: Diverging, itself: Diverging | None, judged: Diverging | None, words: str | None
) -> None:
    problem = unjudged_replies(found, itself, judged)
    assert (problem is None) == (words is None)
    if words == "judge them":
        assert words in str(problem)
    elif words:
        assert "what was timed is not what was judged" in str(problem)


def test_equal_shares_are_not_far_apart() -> None:
    assert not is_far_above(share(10), share(10))
    assert not is_far_above(share(0, 0), share(0, 0))
    assert is_far_above(share(30), share(2))


def test_counts() -> None:
    pair = MeasuredPair(
        pair=0,
        seconds=np.ones((2, 2, 6)),
        num_tokens=np.ones((2, 2, 6), dtype=np.int64),
        device=np.zeros((2, 2), dtype=np.int64),
        num_diverging=5,
        origin="",
    )
    assert diverging_of([pair, pair]) == Diverging(number=10, compared=24)


def test_judged_replies_are_compared_over_the_timed_length() -> None:
    stock = [_output("a", 1, 2, 3), _output("b", 1, 2, 3)]
    candidate = [_output("a", 1, 2, 4), _output("b", 1, 9, 3)]
    assert diverging_outputs(stock, candidate, 2) == Diverging(number=1, compared=2)
    assert diverging_outputs(stock, candidate, 3) == Diverging(number=2, compared=2)


def _output(name: str, *ids: int) -> ServedOutput:
    return ServedOutput(request_id=name, ids=ids, finish_reason=FinishReason.LENGTH)
