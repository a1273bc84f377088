"""Lending numbers: the lowest first, each once, and what a broken pool says."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import IntegrityError
from lossguard_mechanisms.engine.page_pool import NumberPool


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(0, 5)), max_size=20))
def test_every_number_is_free_or_lent_once(moves: list[tuple[int, int]]) -> None:
    pool, owned = NumberPool(10, name="page"), []
    for count, which in moves:
        if pool.num_free >= count:
            owned.append(pool.take(count))
        elif owned:
            pool.give_back(owned.pop(which % len(owned)))
        pool.check(number for numbers in owned for number in numbers)


def test_the_lowest_free_numbers_come_first() -> None:
    pool = NumberPool(6, name="page")
    first, second = pool.take(2), pool.take(2)
    pool.give_back(first)
    assert pool.take(3) == (0, 1, 4)
    pool.check([0, 1, 4, *second])


@pytest.mark.parametrize(
    ("owned", "found"), [([0, 0, 1], "two owners"), ([0], "2 pages are lent"), ([0, 1, 2], "live requests own 3")]
)
def test_a_broken_pool_is_noticed(owned: list[int], found: str) -> None:
    pool = NumberPool(4, name="page")
    pool.take(2)
    with pytest.raises(IntegrityError, match=found) as caught:
        pool.check(owned)
    assert caught.value.code == "LG1505"


def test_giving_back_twice_is_a_fault_of_the_engine() -> None:
    pool = NumberPool(2, name="slot")
    taken = pool.take(1)
    pool.give_back(taken)
    with pytest.raises(AssertionError, match="slot 0 is given back"):
        pool.give_back(taken)
