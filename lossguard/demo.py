"""The demo: the whole instrument on a small model, with candidates whose right verdict is known.

Covered: two lossless candidates must PASS, five lossy ones must FAIL at least by the check that is named.
Not covered: this is an exhibit, not the instrument's error rates.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from lossguard.config import SystemConfig
from lossguard.demo_targets import DEFAULT_TARGET, Expectation, demo_target
from lossguard.gate import run_gate
from lossguard.gate_result import EXIT_FAIL, EXIT_PASS, GateResult
from lossguard.host_facts import num_cpus_available
from lossguard.listener import Listener
from lossguard.plan import DEFAULT_SEED, Plan
from lossguard.records import Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoResult:
    """The gate's result beside what it had to be."""

    gate: GateResult
    expected: tuple[Expectation, ...]

    @property
    def exit_code(self) -> int:
        """0 only if every candidate got the verdict, by the named check, that it must get."""
        return EXIT_PASS if all(self.is_met(expectation) for expectation in self.expected) else EXIT_FAIL

    def is_met(self, expectation: Expectation) -> bool:
        """Whether a candidate got what it must get."""
        return expectation.is_met_by(self.gate.claim(f"{expectation.candidate}/lossless"))

    def rows(self) -> list[list[str]]:
        """Candidate, what it must get, what it got, right or wrong."""
        table = [["candidate", "must be", "is", ""]]
        for expected in self.expected:
            claim = self.gate.claim(f"{expected.candidate}/lossless")
            failed = [check.check for check in claim.evidence.checks if check.verdict is Verdict.FAIL]
            table.append(
                [
                    expected.candidate,
                    expected.verdict.value + (f" by {expected.failing_check}" if expected.failing_check else ""),
                    claim.verdict.value + (f" by {', '.join(failed)}" if failed else ""),
                    "right" if self.is_met(expected) else "WRONG",
                ]
            )
        return table

    def to_json(self) -> dict[str, Any]:
        """The report with the demo's own outcome beside it (readers of schema 1 ignore unknown fields)."""
        return {
            **self.gate.report,
            "demo": [
                {
                    "candidate": expected.candidate,
                    "expected_verdict": expected.verdict.value,
                    "expected_failing_check": expected.failing_check,
                    "expected_passing_check": expected.passing_check,
                    "is_met": self.is_met(expected),
                }
                for expected in self.expected
            ],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Demo:
    """What is to be shown: a target, prompts and places of faults by a seed, on a device (None: the systems' own)."""

    target: str = DEFAULT_TARGET
    seed: int = DEFAULT_SEED
    device: str | None = None


def run_demo(
    demo: Demo,
    *,
    folder: Path = Path(".lossguard"),
    resume: Path | None = None,
    listener: Listener | None = None,
    command: Sequence[str] = (),
) -> DemoResult:
    """Judge the demo's candidates.

    Raises UsageError LG0407 (the target's files are not here) or LG0408 (no such target), and what ``run_gate`` does.
    """
    target = demo_target(demo.target)
    config = target.config(demo.seed)
    systems = {name: replace(system, options=_options(system, demo.device)) for name, system in config.systems.items()}
    plan = Plan(
        replace(config, systems=systems),
        candidates=[expected.candidate for expected in target.expected],
        budget=target.budget,
        folder=folder,
        resume=resume,
        serve_ahead=target.leaves_a_core and num_cpus_available() > 1,
    )
    return DemoResult(gate=run_gate(plan, listener=listener, command=command), expected=target.expected)


def _options(system: SystemConfig, device: str | None) -> dict[str, Any]:
    """The system's options. Packed weights are given in configurations of CPUs with bfloat16 products only."""
    options = {**system.options, **({} if device is None else {"device": device})}
    if options.get("packed_weights") and (device not in (None, "cpu") or not can_pack_weights()):
        del options["packed_weights"]
    return options


def can_pack_weights() -> bool:
    """Whether this CPU multiplies bfloat16 weights that oneDNN has laid out."""
    import torch

    is_available: bool = torch.backends.mkldnn.is_available()
    return is_available and bool(torch.ops.mkldnn._is_mkldnn_bf16_supported())
