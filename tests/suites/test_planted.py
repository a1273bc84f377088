"""Every fault and every control, planted in a tiny model: acts, acts inside generation, and not at strength zero."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM

from lossguard.records import Request, ServedOutput
from lossguard_suites.adversarial.faults import CONTROLS, FAULTS, Fault, fault
from lossguard_suites.adversarial.faults.near_ties import bfloat16_step
from tests.suites.tiny_faults import FIRM, first_difference, requests_for, serve, timeless, with_stop

ROUNDING = {"width-noise", "quarter-noise", "tenth-noise", "float16", "float16-eager"}
"""Controls that round differently: they may move near-ties."""
LOSSY = [item for item in FAULTS if not item.is_control and item.name != "cut-text"]
"""This engine reports no text that could be cut: see test_output_faults.py."""


def by_name(faults: Sequence[Fault]) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("planted", faults, ids=lambda item: item.name)


@pytest.fixture(scope="session")
def stock(tiny_path: str) -> dict[str, tuple[list[Request], list[ServedOutput]]]:
    """Requests and stock's replies, by what the requests ask for."""
    found: dict[str, tuple[list[Request], list[ServedOutput]]] = {}
    for planted in FAULTS:
        requests = requests_for(planted)
        key = repr((requests[0].sampling, len(requests)))
        if key not in found:
            found[key] = (requests, serve(tiny_path, requests))
    return found


@pytest.fixture
def plain(
    planted: Fault, tiny_path: str, stock: dict[str, tuple[list[Request], list[ServedOutput]]]
) -> tuple[list[Request], list[ServedOutput]]:
    requests = requests_for(planted)
    requests, outputs = stock[repr((requests[0].sampling, len(requests)))]
    if planted.name in {"past-the-stop", "mislabelled-end"}:
        requests = with_stop(requests, outputs)
        return requests, serve(tiny_path, requests)
    return requests, outputs


@by_name(LOSSY)
def test_a_fault_acts(planted: Fault, tiny_path: str, plain: tuple[list[Request], list[ServedOutput]]) -> None:
    requests, outputs = plain
    faulty = serve(tiny_path, requests, planted.options(**FIRM.get(planted.name, {})))
    assert any(timeless(one) != timeless(other) for one, other in zip(outputs, faulty, strict=True))
    if planted.is_inside:
        assert max(num_changed(one, other) for one, other in zip(outputs, faulty, strict=True)) >= 2


def num_changed(stock: ServedOutput, faulty: ServedOutput) -> int:
    """Tokens from the first difference on that are not stock's: later tokens follow from a faulty prefix."""
    at = first_difference(stock.ids, faulty.ids)
    if at is None:
        return abs(len(stock.ids) - len(faulty.ids))
    return sum(a != b for a, b in zip(stock.ids[at:], faulty.ids[at:], strict=False)) + abs(
        len(stock.ids) - len(faulty.ids)
    )


@by_name([item for item in FAULTS if item.strength is not None and not item.expect.get("drafts")])
def test_a_fault_of_no_strength_changes_no_token(
    planted: Fault, tiny_path: str, plain: tuple[list[Request], list[ServedOutput]]
) -> None:
    requests, outputs = plain
    assert planted.strength is not None
    firm = {key: value for key, value in FIRM.get(planted.name, {}).items() if key != planted.strength.parameter}
    idle = serve(tiny_path, requests, planted.at_strength(planted.strength.off, **firm))
    for one, other in zip(outputs, idle, strict=True):
        assert replace(timeless(one), telemetry={}, usage=None) == replace(timeless(other), telemetry={}, usage=None)


@by_name(CONTROLS)
def test_a_control_is_harmless(planted: Fault, tiny_path: str, plain: tuple[list[Request], list[ServedOutput]]) -> None:
    requests, outputs = plain
    served = serve(tiny_path, requests, planted.options())
    for request, one, other in zip(requests, outputs, served, strict=True):
        at = first_difference(one.ids, other.ids)
        assert at is None or planted.name in ROUNDING
        if at is not None:
            gap, step = forced_gap(tiny_path, request, other.ids, at)
            assert gap <= step
        if planted.expect.get("drafts"):
            assert other.telemetry["drafts"][0] >= (1 if "assistant_model" in planted.engine_options else 0)
    if planted.expect.get("preempted"):
        assert any(sum(output.telemetry["preempted"]) > 0 for output in served)


def forced_gap(path: str, request: Request, ids: Sequence[int], at: int) -> tuple[float, float]:
    """Gap of the token served there, and one bfloat16 step of the best logit."""
    loader: Any = AutoModelForCausalLM
    with torch.no_grad():
        logits = loader.from_pretrained(path)(torch.tensor([[*request.prompt_ids, *ids[:at]]])).logits[0, -1]
    return float(logits.max() - logits[ids[at]]), float(bfloat16_step(logits.max()))


@by_name([fault(name) for name in ("first-request-ties", "width-noise", "last-bit-cache", "last-bit-everywhere")])
def test_a_control_does_change_the_arithmetic(planted: Fault, tiny_path: str) -> None:
    """In bfloat16, where rounding shows, it gives other logits than stock somewhere."""
    requests = [replace(item, sampling=replace(item.sampling, logprobs=2)) for item in requests_for(planted)]
    strong = {"share": 1.0, "delta": 2.0} if planted.name == "first-request-ties" else {}
    stock = serve(tiny_path, requests, {"dtype": "bfloat16"})
    served = serve(tiny_path, requests, {"dtype": "bfloat16", **planted.options(**strong)})
    is_choice = "logits_processors" in planted.options()
    for one, other in zip(stock, served, strict=True):
        if (one.ids != other.ids) if is_choice else (one.logprobs != other.logprobs):
            return
    pytest.fail("nothing changed at all")
