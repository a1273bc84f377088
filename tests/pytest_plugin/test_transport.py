"""One JSON string per claim: plain values survive the way, everything else is refused where it is made."""

from __future__ import annotations

import math
from enum import Enum
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lossguard.errors import IntegrityError
from lossguard.pytest_plugin.transport import ClaimMessage, decode, encode, plain

PLAIN = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


class Colour(str, Enum):
    """An enum that is a string to isinstance."""

    RED = "red"


@given(st.dictionaries(st.text(), PLAIN, max_size=4))
def test_plain_values_come_back(value: dict[str, Any]) -> None:
    assert decode(encode(value)) == value


@pytest.mark.parametrize(
    "value",
    [
        np.float64(1.5), np.float32(1.5), np.int64(3), np.bool_(1), np.zeros(2), math.nan, math.inf, -math.inf,
        Path("x"), {1: 2}, {"a": {2}}, b"x", Colour.RED, object(), [{"a": (1, [np.float64(0.0)])}],
    ],
    ids=lambda value: type(value).__name__,
)  # fmt: skip
def test_everything_else_is_refused(value: object) -> None:
    with pytest.raises(IntegrityError, match="LG0809"):
        encode({"value": value})


def test_the_place_is_named() -> None:
    with pytest.raises(IntegrityError, match=r"\$\.a\[1\] is a numpy\.float64"):
        encode({"a": [1, np.float64(2)]})


def test_a_message_comes_back() -> None:
    message = ClaimMessage(claim="a", status="FAIL", summary="s", evidence={"checks": [{"gap": 1.5}]})
    assert ClaimMessage.from_text(message.to_text()) == message


@pytest.mark.parametrize(
    "text", ["", "{", "[]", "{}", '{"version":1}', '{"version":2,"claim":"a","status":"PASS","summary":""}', 5, None]
)
def test_anything_else_is_no_message(text: object) -> None:
    with pytest.raises(ValueError):  # noqa: PT011 - json's own error is one
        ClaimMessage.from_text(text)


def test_plain_turns_numpy_floats_into_floats() -> None:
    copied = plain({"a": (np.float64(1.5), 2)})
    assert copied == {"a": [1.5, 2]}
    assert type(copied["a"][0]) is float
    with pytest.raises(ValueError, match="not JSON compliant"):
        plain({"a": math.nan})
