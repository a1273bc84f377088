"""Judge the planted faults of the sampler, and their controls, on any model: the live selftest's sampled rounds.

``python -m tools.sampled_faults MODEL --device cuda --requests 300 --tokens 64`` prints one line a candidate; the exit
code is 0 if every fault fails by a check that is named for it, and every control passes.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from lossguard.gate import run_gate
from lossguard.plan import Budget, Plan
from lossguard.records import Claim
from lossguard.selftest.base import SelftestOptions
from lossguard_suites.adversarial import live
from lossguard_suites.adversarial.faults import fault
from lossguard_suites.adversarial.findings import finding_of


def main(arguments: list[str] | None = None) -> int:
    """Rounds at temperature above 0 only."""
    given = _parser().parse_args(arguments)
    rounds = [_only(current, given.only) for current in live.full_rounds() if current.temperature]
    rounds = [current for current in rounds if current.faults]
    claims = [claim for current in rounds for claim in _claims(current, given)]
    findings = [finding_of(fault(claim.candidate), claim) for claim in claims]
    for claim, finding in zip(claims, findings, strict=True):
        print(f"{'right' if finding.is_met else 'WRONG'}  {claim.candidate}: {claim.verdict.value}")
        for check in claim.evidence.checks:
            if check.check in ("sampling", "support"):
                print(f"    {check.check} {check.verdict.value}: {check.summary}")
    return 0 if all(finding.is_met for finding in findings) else 1


def _only(current: live.Round, names: list[str]) -> live.Round:
    """The round with these faults alone; no name means all."""
    return replace(current, faults=tuple(name for name in current.faults if not names or name in names))


def _claims(current: live.Round, given: argparse.Namespace) -> Iterator[Claim]:
    options = SelftestOptions(device=given.device, seed=given.seed, folder=given.folder)
    config = replace(live.live_config(current.faults, options, current.asks), model=str(given.model.absolute()))
    budget = Budget(
        name="sampled", num_requests=given.requests, max_tokens=given.tokens, num_calibration=given.calibration
    )
    plan = Plan(config, candidates=current.faults, budget=budget, temperature=current.temperature, folder=given.folder)
    yield from run_gate(plan).claims


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model", type=Path)
    parser.add_argument("--only", nargs="*", default=[], metavar="FAULT", help="these faults alone")
    parser.add_argument("--calibration", type=int, default=80)
    parser.add_argument("--device", default=None)
    parser.add_argument("--seed", type=int, default=17)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--folder", type=Path, default=Path(".lossguard"))
    return parser


if __name__ == "__main__":
    sys.exit(main())
