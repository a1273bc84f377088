"""One position for people: what was served, what stock served there, what else there was, what stands before it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from lossguard.checks.base import Arm
from lossguard.stages.divergence import CONTEXT_TOKENS, Reader
from tests.checks.simulated_arms import ArmSpec, make_arm, make_requests


def words(*ids: int) -> str:
    return " ".join(map(str, ids))


def arm(name: str, seed: int) -> Arm:
    generator = np.random.default_rng(seed)
    requests = make_requests(3)
    return make_arm(generator, requests, ArmSpec(name=name, lengths=np.array([40, 5, 40]), shares=np.full(3, 0.1)))


@pytest.fixture
def reader() -> Reader:
    candidate = arm("candidate", 1)
    return Reader(arm=candidate, stock=replace(candidate, name="stock"), decode=words)


def test_stocks_token_is_told_while_both_replies_are_the_same(reader: Reader) -> None:
    assert reader.example(0, 7, "event")["stock_id"] == reader.stock.outputs[0].ids[7]
    outputs = list(reader.stock.outputs)
    outputs[0] = replace(outputs[0], ids=(*outputs[0].ids[:7], 999, *outputs[0].ids[8:]))
    parted = replace(reader, stock=replace(reader.stock, outputs=outputs))
    assert parted.example(0, 7, "event")["stock_text"] == "999"
    assert "stock_id" not in parted.example(0, 8, "event")
    outputs[0] = replace(outputs[0], ids=reader.stock.outputs[0].ids[:7])
    assert "stock_id" not in replace(reader, stock=replace(reader.stock, outputs=outputs)).example(0, 7, "event")


def test_the_context_ends_before_the_position(reader: Reader) -> None:
    ids = reader.arm.outputs[2].ids
    assert reader.example(2, 0, "event")["context_text"] == ""
    assert reader.example(2, 3, "event")["context_text"] == words(*ids[:3])
    assert reader.example(2, 39, "event")["context_text"] == words(*ids[39 - CONTEXT_TOKENS : 39])


def test_alternatives_are_those_of_the_position_best_first(reader: Reader) -> None:
    scores, at = reader.arm.scores, int(reader.arm.scores.offsets[2]) + 11
    best, second = scores.top_logits[at]
    assert reader.example(2, 11, "event")["alternatives"] == [
        {"id": 10, "text": "10", "gap_nats": 0.0},
        {"id": 11, "text": "11", "gap_nats": pytest.approx(float(best - second), abs=1e-4)},
    ]


def test_without_finite_logits_there_are_no_alternatives(reader: Reader) -> None:
    finite = reader.arm.scores.finite.copy()
    finite[4] = False
    broken = replace(reader, arm=replace(reader.arm, scores=replace(reader.arm.scores, finite=finite)))
    assert broken.example(0, 4, "event")["alternatives"] == []
    assert broken.example(0, 5, "event")["alternatives"] != []


def test_an_infinite_gap_is_null(reader: Reader) -> None:
    gap = reader.arm.scores.gap.copy()
    gap[4] = np.inf
    beyond = replace(reader, arm=replace(reader.arm, scores=replace(reader.arm.scores, gap=gap)))
    assert beyond.example(0, 4, "event")["gap_nats"] is None
