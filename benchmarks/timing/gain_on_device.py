"""Planted gains of a CUDA-graph decode loop, judged by the timing gate: ``python -m benchmarks.timing.gain_on_device``.

Stock carries a delay of known length in every step, the candidate none. One device: turns in ABBA blocks; two devices:
swapped pairs. Writes a report as JSON and prints a table. ``--engine clockwork`` runs the same on CPUs.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any

from lossguard.devices.names import parse_devices
from lossguard.listener import SilentListener
from lossguard.selftest.timing_live import ENGINE as CLOCKWORK
from lossguard.selftest.timing_live import LiveCase, LiveOptions, LiveResult, PlantedCase, time_cases

GRAPH_LOOP = "benchmarks.timing.cuda_graph_loop:create"
CALIBRATION_CYCLES = 100_000
SMALL_GAIN = 0.01  # up to here the rule must not promote
CALIBRATE = """
import json, statistics, sys
from benchmarks.timing.cuda_graph_loop import create, step_seconds
from lossguard.engines.base import EngineSpec
base = json.loads(sys.argv[1])
times = []
for cycles in (0, int(sys.argv[2])):
    loop = create(EngineSpec(name="loop", model_path="", options={**base, "extra_cycles": cycles}))
    times.append(statistics.median(step_seconds(loop, base["num_positions"] - 1)[20:]))
    loop.close()
print(json.dumps(times))
"""


class Printer(SilentListener):
    """Messages on stderr."""

    def message(self, text: str) -> None:
        """Now."""
        print(text, file=sys.stderr, flush=True)

    @contextmanager
    def stage(self, title: str, total: int, unit: str) -> Iterator[Callable[[int], None]]:
        """No bar."""
        self.message(f"{title}: {total} {unit}")
        yield lambda _count: None


def main() -> int:
    """Run and print. Exit code 0 if every planted case got what it must."""
    given = parse_arguments()
    options = LiveOptions(
        folder=given.folder,
        devices=tuple(given.devices.split(",")),
        pairs=given.pairs,
        noise_pairs=given.noise_pairs,
        requests=given.requests,
        tokens=given.tokens,
        engine=GRAPH_LOOP if given.engine == "graph-loop" else CLOCKWORK,
        relaunch=given.relaunch,
        max_foreign_load=given.max_foreign_load,
        max_stolen=given.max_stolen,
    )
    gains = [float(text) for text in given.gains.split(",")]
    cases, facts = graph_cases(given, gains) if given.engine == "graph-loop" else clockwork_cases(options, gains)
    result = time_cases(options, cases, Printer())
    report = {"facts": facts, "verdict": result.verdict.value, "summary": result.summary, **_evidence(result)}
    given.folder.joinpath("report.json").write_text(json.dumps(report, indent=1))
    print("\n".join(table(result)))
    return 0 if result.verdict.is_pass else 1


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--engine", choices=("graph-loop", "clockwork"), default="graph-loop")
    parser.add_argument("--devices", default="cuda:0")
    parser.add_argument("--gains", default="0.03,0.015,0.005", help="planted, as fractions")
    parser.add_argument("--shape", default="qwen3-8b")
    parser.add_argument("--batch-size", type=int, default=1)
    parser.add_argument("--relaunch", choices=("process", "reset"), default="reset")
    parser.add_argument("--pairs", type=int, default=8)
    parser.add_argument("--noise-pairs", type=int, default=20)
    parser.add_argument("--requests", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--max-foreign-load", type=float, default=0.2)
    parser.add_argument("--max-stolen", type=float, default=0.02)
    parser.add_argument("--folder", type=Path, default=Path(".lossguard/gain-on-device"))
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    return given


def required(gain: float) -> str:
    """What a planted gain must get: over 1 % with room for noise it must be promoted, under it never."""
    return "PASS" if gain > SMALL_GAIN else "not PASS"


def clockwork_cases(options: LiveOptions, gains: Sequence[float]) -> tuple[list[PlantedCase], Mapping[str, Any]]:
    """Delays of the clockwork engine."""
    base = {"token_seconds": options.token_seconds}
    cases = [_same(base)]
    for gain in gains:
        slow = {"token_seconds": options.token_seconds * (1 + gain)}
        cases.append(_case(gain, gain, slow, base))
    return cases, {"engine": "clockwork", **base}


def graph_cases(given: argparse.Namespace, gains: Sequence[float]) -> tuple[list[PlantedCase], Mapping[str, Any]]:
    """Delays in clocks, from the length of a step with and without a known number of them."""
    base = {
        "shape": given.shape,
        "batch_size": given.batch_size,
        "num_positions": given.tokens + 64,  # the prompt with its nonce goes through the same steps
    }
    device = parse_devices(given.devices.split(","))[0]
    done = subprocess.run(  # noqa: S603 - this interpreter, our own text
        [sys.executable, "-c", CALIBRATE, json.dumps(base), str(CALIBRATION_CYCLES)],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, **device.environment()},
    )
    plain, delayed = json.loads(done.stdout.splitlines()[-1])
    seconds_per_cycle = (delayed - plain) / CALIBRATION_CYCLES
    facts = {"step_seconds": plain, "seconds_per_cycle": seconds_per_cycle, **base}
    print(f"a step takes {1e6 * plain:.1f} us; a cycle {1e9 * seconds_per_cycle:.3f} ns", file=sys.stderr)
    cases = [_same(base)]
    for gain in gains:
        cycles = round(gain * plain / seconds_per_cycle)
        cases.append(_case(gain, cycles * seconds_per_cycle / plain, {**base, "extra_cycles": cycles}, base))
    return cases, facts


def table(result: LiveResult) -> list[str]:
    """One line a case."""
    lines = [f"{result.verdict.value}  {result.summary}", "case  planted %  gain %  bounds %  threshold  verdict  must"]
    return [*lines, *(_row(case) for case in result.cases), *result.problems]


def _row(case: LiveCase) -> str:
    return (
        f"{case.name}  {100 * case.planted_gain:+.3f}  {case.check.candidate}  {case.check.bound}  {case.check.limit}  "
        f"{case.verdict.value}  {case.required}"
    )


def _same(base: Mapping[str, Any]) -> PlantedCase:
    return PlantedCase(name="same", stock=base, candidate=base, planted_gain=0.0, required="not PASS")


def _case(asked: float, planted: float, stock: Mapping[str, Any], candidate: Mapping[str, Any]) -> PlantedCase:
    return PlantedCase(
        name=f"gain-{asked:g}", stock=stock, candidate=candidate, planted_gain=planted, required=required(asked)
    )


def _evidence(result: LiveResult) -> dict[str, Any]:
    cases = [{**asdict(case), "verdict": case.verdict.value, "check": case.check.to_json()} for case in result.cases]
    return {"cases": cases, "problems": list(result.problems), **dict(result.evidence)}


if __name__ == "__main__":
    sys.exit(main())
