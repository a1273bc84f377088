"""Two parts of a run that need the same device are never there together."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pytest

from lossguard.config import ScorerConfig, SystemConfig
from lossguard.engines.base import EngineSpec
from lossguard.gate import run_gate
from lossguard.plan import SystemHandle
from lossguard.records import Verdict
from lossguard.stages.devices import ANY, overlaps, scorer_devices
from tests.gate.conftest import Stack, make_stack
from tests.gate.toy import ToyEngine, ToyScorer, ToyTarget, wrong_token


@pytest.mark.parametrize(
    ("options", "devices"),
    [
        ({"device": "cpu"}, frozenset()),
        ({"device": "cuda:1"}, frozenset({"1"})),
        ({"device": "cuda"}, ANY),
        ({}, ANY),
        ({"device": "cuda:1", "device_map": "auto"}, ANY),
        ({"launch": "serve", "devices": 2}, frozenset({"0", "1"})),
        ({"launch": "serve", "devices": [3]}, frozenset({"3"})),
        ({"launch": "serve"}, frozenset()),
        ({"url": "http://127.0.0.1:1"}, frozenset()),
    ],
)
def test_devices_of_the_scorer(options: dict[str, object], devices: frozenset[str]) -> None:
    assert scorer_devices(ScorerConfig(options=options)) == devices


def test_overlaps() -> None:
    one, two, none = frozenset({"0"}), frozenset({"1", "2"}), frozenset[str]()
    assert overlaps(one, one)
    assert not overlaps(one, two)
    assert overlaps(ANY, one)
    assert not overlaps(ANY, none)
    assert not overlaps(none, none)


@dataclass
class Card:
    """One accelerator that remembers who is on it."""

    holders: set[str] = field(default_factory=set)
    most: int = 0
    order: list[str] = field(default_factory=list)

    def enter(self, name: str) -> None:
        if name not in self.holders:
            self.order.append(name)
        self.holders.add(name)
        self.most = max(self.most, len(self.holders))

    def leave(self, name: str) -> None:
        self.holders.discard(name)


@dataclass
class CardEngine(ToyEngine):
    """Takes the card with its first request, as a launched server does."""

    card: Card = field(default_factory=Card)
    spec: EngineSpec | None = None
    devices = frozenset({"0"})

    def serve(self, requests):  # type: ignore[no-untyped-def]
        assert self.spec is not None
        if self.spec.name not in self.card.holders:
            self.spec.make_room(self.devices)
        self.card.enter(self.spec.name)
        yield from super().serve(requests)

    def close(self) -> None:
        assert self.spec is not None
        self.card.leave(self.spec.name)


@dataclass
class CardScorer(ToyScorer):
    card: Card = field(default_factory=Card)

    def close(self) -> None:
        self.card.leave("scorer")


def handle(name: str, engine: CardEngine) -> SystemHandle:
    def create(spec: EngineSpec) -> CardEngine:
        engine.spec = spec
        return engine

    return SystemHandle(config=SystemConfig(name=name, engine="toy"), create=create)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    return make_stack(tmp_path, monkeypatch)


def test_one_card_holds_one_at_a_time(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> None:
    card = Card()

    def scorer(_path: str, _options: object) -> CardScorer:
        card.enter("scorer")
        return CardScorer(ToyTarget(), card=card)

    monkeypatch.setattr("lossguard.stages.workspace.scorer_factory", lambda _kind: scorer)
    stock = handle("stock", CardEngine(stack.target, card=card, forced=False))
    good = handle("good", CardEngine(stack.target, card=card, batch_size=5))
    bad = handle("bad", CardEngine(stack.target, card=card, faults=(wrong_token(every=15),)))
    result = run_gate(stack.plan([good, bad], stock=stock))
    assert card.most == 1
    assert card.holders == set()
    assert result.claim("good/lossless").verdict is Verdict.PASS
    assert result.claim("bad/lossless").verdict is Verdict.FAIL
    assert "loaded" in result.report["fingerprint"]["scorer"]
    notes = (result.run_folder / "log.txt").read_text()
    assert "the scorer is closed: bad needs its device" in notes
