"""Detection against tokens per arm on a finished run, beside four rivals: measure, then write table and curves.

python -m tools.detection measure RUN [RUN ...] --json detection.json --workers 16
python -m tools.detection write detection.json [...] --page docs/validity.md --figure docs/figures/detection.svg

RUN is the folder of a finished run, or a folder of compact exports.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from lossguard.cli.console import ConsoleListener
from lossguard.demo_targets import SMOLLM2
from lossguard.selftest.detection import GATE, NUM_SAMPLES, TOKENS, Curve, DetectionPlan, measure_detection
from lossguard.selftest.detection_table import detection_table
from lossguard_suites.adversarial.faults import CONTROLS as SUITE

START, END = "<!-- detection: begin (python -m tools.detection) -->", "<!-- detection: end -->"
CONTROLS = (
    *(expected.candidate for expected in SMOLLM2.expected if expected.verdict.is_pass),
    *(item.name for item in SUITE),
)


def measure(arguments: argparse.Namespace) -> None:
    """Sample the run's outputs and write the curves as JSON."""
    controls = tuple(arguments.control or CONTROLS)
    plan = DetectionPlan(
        runs=tuple(arguments.runs),
        systems=tuple(arguments.system or ()),
        controls=controls,
        tokens=tuple(arguments.tokens),
        num_samples=arguments.samples,
        num_workers=arguments.workers,
    )
    curves = measure_detection(plan, ConsoleListener())
    found = {
        "controls": sorted({*controls} & {curve.system for curve in curves}),
        "seed": plan.seed,
        "curves": [curve.to_json() for curve in curves],
    }
    arguments.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(detection_table(curves, controls))


def write(arguments: argparse.Namespace) -> None:
    """Put the table between the markers of the page, and the curves into the figure."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in arguments.json]
    latest = {(row["system"], row["rule"]): Curve.from_json(row) for part in found for row in part["curves"]}
    curves = list(latest.values())
    table = detection_table(curves, [name for part in found for name in part["controls"]])
    if arguments.page:
        text = arguments.page.read_text(encoding="utf-8")
        head, _, rest = text.partition(START)
        _, _, tail = rest.partition(END)
        arguments.page.write_text(f"{head}{START}\n\n{table}\n\n{END}{tail}", encoding="utf-8")
    if arguments.figure:
        from lossguard.selftest.plots import power_curves

        arguments.figure.parent.mkdir(parents=True, exist_ok=True)
        arguments.figure.write_text(power_curves(_telling(curves)), encoding="utf-8")


def _telling(curves: Sequence[Curve]) -> list[Curve]:
    """Those of systems that lossguard does not find at once, or all if it finds each."""
    slow = {
        curve.system
        for curve in curves
        if curve.rule == GATE and len(curve.tokens) > 1 and curve.tokens_to_detection != curve.tokens[0]
    }
    return [curve for curve in curves if curve.system in slow] or list(curves)


def main(given: Sequence[str]) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    verbs = parser.add_subparsers(required=True)
    first = verbs.add_parser("measure")
    first.add_argument("runs", type=Path, nargs="+")
    first.add_argument("--json", type=Path, required=True)
    first.add_argument("--system", action="append", help="a candidate (default: all that are scored)")
    first.add_argument("--control", action="append", help="a lossless candidate (default: the demo's and the suite's)")
    first.add_argument("--tokens", type=int, nargs="+", default=TOKENS)
    first.add_argument("--samples", type=int, default=NUM_SAMPLES)
    first.add_argument("--workers", type=int, default=1)
    first.set_defaults(run_verb=measure)
    second = verbs.add_parser("write")
    second.add_argument("json", type=Path, nargs="+", help="a system measured twice counts as in the last one")
    second.add_argument("--page", type=Path)
    second.add_argument("--figure", type=Path)
    second.set_defaults(run_verb=write)
    arguments = parser.parse_args(given)
    arguments.run_verb(arguments)


if __name__ == "__main__":
    main(sys.argv[1:])
