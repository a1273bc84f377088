"""The replayed engine on a CPU, at a tiny shape: all modes serve the recording, in as many steps as it allows."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from benchmarks.replayed_tables import recorded_table
from benchmarks.timing.replayed_engine import ReplayedEngine, create
from lossguard.engines.base import EngineSpec
from lossguard.errors import EngineError, UsageError
from lossguard.records import Request, SamplingParams, ServedOutput

LATTICES = Path(__file__).parents[2] / "fixtures" / "lattices"
RECORDING = LATTICES / "dflash2.lattice.safetensors"
TINY: dict[str, Any] = {"shape": "tiny", "device": "cpu", "compiled": False, "recording": str(RECORDING)}


def engine(**options: object) -> ReplayedEngine:
    return create(EngineSpec(name="replayed", model_path="", options={**TINY, **options}))


def request(number: int, *, max_tokens: int = 40, temperature: float = 0.0) -> Request:
    sampling = SamplingParams(max_tokens=max_tokens, temperature=temperature, ignore_eos=True)
    return Request(id=f"q{number}", prompt_ids=(5, 6, 7, 8), sampling=sampling, set="a", cluster=f"c{number}")


def served(mode: str) -> list[ServedOutput]:
    return list(engine(mode=mode).serve([request(number) for number in range(3)]))


def test_all_modes_serve_the_recording_in_fewer_steps() -> None:
    plain, chain, tree = served("plain"), served("chain"), served("tree")
    assert [reply.ids for reply in plain] == [reply.ids for reply in chain] == [reply.ids for reply in tree]
    cpu = torch.device("cpu")
    recorded = recorded_table(RECORDING, batch=24, length=40, num_drafts=7, device=cpu).tokens.tolist()
    assert all(list(reply.ids) in recorded for reply in plain)
    assert len({reply.ids for reply in plain}) > 1
    steps = [sum(reply.telemetry["steps"][0] for reply in side) for side in (chain, tree)]
    assert steps[1] < steps[0] < 0.7 * sum(len(reply.ids) for reply in plain)


def test_a_reset_shows_the_same_facts_whatever_was_served() -> None:
    one = engine(mode="chain")
    before = one.reset()
    first = [reply.ids for reply in one.serve([request(1)])]
    assert one.reset() == before == {"running": 0, "has_work": False}
    assert [reply.ids for reply in one.serve([request(1)])] == first


def test_a_stop_id_ends_a_reply() -> None:
    (whole,) = engine().serve([request(1)])
    sampling = SamplingParams(max_tokens=40, stop_ids=(whole.ids[5],))
    (short,) = engine().serve([replace(request(1), sampling=sampling)])
    assert short.ids == whole.ids[: whole.ids.index(whole.ids[5]) + 1]


@pytest.mark.parametrize("wrong", [request(1, max_tokens=600), request(1, temperature=0.7)])
def test_a_request_that_does_not_fit_is_refused(wrong: Request) -> None:
    with pytest.raises(EngineError, match="LG0217"):
        list(engine().serve([wrong]))


@pytest.mark.parametrize(
    "options", [{"mode": "star"}, {"shape": "huge"}, {"nodes": 0}, {"slots": 2}, {"recording": "none"}]
)
def test_a_wrong_option_is_refused(options: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="LG0204"):
        engine(**options)
