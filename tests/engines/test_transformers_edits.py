"""State edits: they see every forward pass of their model, in order, and leave nothing behind."""

from __future__ import annotations

from typing import Any

import pytest

from lossguard.engines.extensions import BatchContext, ForwardCall
from lossguard.errors import EngineError, UsageError
from tests.engines.tiny_systems import MAX_TOKENS, engine, ids_of, make_requests, prefixes, serve

HERE = "tests.engines.test_transformers_edits"
WIDTHS: list[tuple[str, int]] = []


def watch(context: BatchContext, *, name: str = "first") -> Any:
    """Notes the width of every pass."""

    def edit(call: ForwardCall) -> Any:
        WIDTHS.append((name, call.arguments["input_ids"].shape[1]))
        return call.proceed(call.arguments)

    return edit


def late(context: BatchContext) -> Any:
    """Two positions late."""

    def edit(call: ForwardCall) -> Any:
        positions = call.arguments["position_ids"]
        shift = 0 if positions.shape[1] > 1 else 2
        return call.proceed({**call.arguments, "position_ids": positions + shift})

    return edit


def blind(context: BatchContext) -> Any:
    """Reads the same token everywhere."""

    def edit(call: ForwardCall) -> Any:
        return call.proceed({**call.arguments, "input_ids": call.arguments["input_ids"] * 0 + 5})

    return edit


def broken(context: BatchContext) -> Any:
    def edit(call: ForwardCall) -> Any:
        raise ValueError("this pass fails")

    return edit


@pytest.fixture(autouse=True)
def forget() -> None:
    WIDTHS.clear()


def test_every_pass_goes_through_the_edits_first_one_outermost(tiny_path: str) -> None:
    requests = make_requests(3)
    edits = [f"{HERE}:watch", {"factory": f"{HERE}:watch", "name": "second"}]
    assert ids_of(serve(tiny_path, requests, state_edits=edits)) == ids_of(serve(tiny_path, requests))
    longest = max(len(request.prompt_ids) for request in requests)
    widths = [longest, *[1] * (MAX_TOKENS - 1)]
    assert [(name, width) for width in widths for name in ("first", "second")] == WIDTHS


def test_an_edit_changes_what_is_served_and_what_forced_decode_would_serve(tiny_path: str) -> None:
    requests = make_requests(4)
    plain, edited = serve(tiny_path, requests), serve(tiny_path, requests, state_edits=[f"{HERE}:late"])
    assert ids_of(plain) != ids_of(edited)
    system = engine(tiny_path, state_edits=[f"{HERE}:late"])
    assert system.forced_decode(prefixes(requests, edited)) == ids_of(edited)
    assert engine(tiny_path).forced_decode(prefixes(requests, plain)) == ids_of(plain)


def test_the_model_is_left_as_it_was(tiny_path: str) -> None:
    requests = make_requests(2)
    system = engine(tiny_path, state_edits=[f"{HERE}:watch"])
    list(system.serve(requests))
    model = system._session.load().model
    assert "forward" not in model.__dict__
    failing = engine(tiny_path, state_edits=[f"{HERE}:broken"])
    with pytest.raises(EngineError, match="this pass fails"):
        list(failing.serve(requests))
    assert "forward" not in failing._session.load().model.__dict__


def test_draft_edits_reach_the_drafter_alone(tiny_path: str) -> None:
    requests = make_requests(2)
    drafting: dict[str, Any] = {"assistant_model": tiny_path, "num_assistant_tokens": 3}
    plain = serve(tiny_path, requests, **drafting)
    edited = serve(tiny_path, requests, **drafting, draft_edits=[f"{HERE}:blind", f"{HERE}:watch"])
    assert ids_of(edited) == ids_of(plain)
    assert WIDTHS
    accepted = [[output.telemetry["accepted"][0] for output in outputs] for outputs in (plain, edited)]
    assert sum(accepted[1]) < sum(accepted[0])


@pytest.mark.parametrize("options", [{}, {"assistant_model": "self"}])
def test_draft_edits_need_a_drafter_of_its_own(tiny_path: str, options: dict[str, Any]) -> None:
    with pytest.raises(UsageError, match="no assistant_model of its own"):
        engine(tiny_path, draft_edits=[f"{HERE}:watch"], **options)


def test_edits_are_part_of_the_fingerprint(tiny_path: str) -> None:
    facts = engine(tiny_path, state_edits=[{"factory": f"{HERE}:watch", "name": "x"}]).fingerprint()
    assert facts["options"]["state_edits"] == [{"target": f"{HERE}:watch", "arguments": {"name": "x"}}]


def test_an_edit_that_cannot_be_loaded_is_refused(tiny_path: str) -> None:
    with pytest.raises(UsageError, match="nothing_here"):
        engine(tiny_path, state_edits=[f"{HERE}:nothing_here"])
