"""The plan of the campaigns on GPUs: what is planted, and how long a plain step is taken to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.timing.device_campaigns import CYCLES, Phase, level_seconds, make_requests, planted_cycles
from lossguard.stages.timing.run_log import Reply, RunWriter

MICROSECOND = 1e-6
OVERHEAD_SECONDS, SECONDS_PER_CYCLE, PLAIN_SECONDS = 3 * MICROSECOND, 0.5e-9, 6_000 * MICROSECOND


def phase(**changes: object) -> Phase:
    plain = {"name": "p", "kind": "planted", "expected_seconds": 1, "devices": ["cuda:0"], "level": "same"}
    return Phase.from_json({**plain, **changes})


def delayed(cycles: int) -> float:
    return PLAIN_SECONDS + (OVERHEAD_SECONDS + cycles * SECONDS_PER_CYCLE if cycles else 0.0)


@pytest.mark.parametrize("gain", [0.005, 0.015, 0.03])
def test_the_kernels_own_cost_is_part_of_what_is_planted(gain: float) -> None:
    calibration = {"step_seconds": [[delayed(cycles), 0.0] for cycles in CYCLES]}
    cycles = planted_cycles(calibration, gain * PLAIN_SECONDS)
    assert delayed(cycles) / PLAIN_SECONDS - 1 == pytest.approx(gain, abs=1e-6)


def test_a_plain_step_is_that_of_the_last_pair(tmp_path: Path) -> None:
    planned = phase()
    for pair, step_ns in ((0, 7_000_000), (1, 6_000_000)):
        writer = RunWriter(tmp_path / "same" / "runs" / f"pair-{pair:03d}-run-1.jsonl", {"pair": pair, "run": 1})
        reply = Reply(
            arm=0,
            index=0,
            request_id="a",
            sent_ns=5,
            received_ns=5 + planned.num_steps * step_ns,
            num_tokens=32,
            ids_sha256="0",
            finish_reason="length",
        )
        writer.replies([reply])
        writer.end({"problems": []})
    assert level_seconds(planned, tmp_path) == pytest.approx(0.006)


def test_requests_fit_the_loop() -> None:
    planned = phase(requests=3, tokens=20)
    found = make_requests(planned, "timed", planned.requests)
    assert len({request.prompt_ids for request in found}) == 3
    assert planned.options["num_positions"] == planned.num_steps + 1
