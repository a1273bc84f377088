"""What the live selftest found about each planted fault and each control, and the verdict that follows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from lossguard.records import Claim, Verdict
from lossguard.selftest.base import SelftestPart, Table
from lossguard_suites.adversarial.faults import Fault

NAME = "losslessness-live"


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One candidate: what it had to get, and what it got.

    ``surprising`` are checks that cannot see the fault by construction and did not pass all the same: no failure
    of the instrument, but something to look at.
    """

    code: str
    name: str
    title: str
    is_control: bool
    seen_by: tuple[str, ...]
    verdict: Verdict
    failed: tuple[str, ...]
    inconclusive: tuple[str, ...]
    surprising: tuple[str, ...]
    family: str
    diagnosed: str  # empty unless the claim failed
    num_tokens: int
    num_mismatches: int
    num_stock_tokens: int
    num_stock_mismatches: int

    @property
    def is_met(self) -> bool:
        """A control passes; a fault fails by a check that is named for it."""
        if self.is_control:
            return self.verdict.is_pass
        return self.verdict is Verdict.FAIL and bool(set(self.failed) & set(self.seen_by))

    @property
    def is_broken(self) -> bool:
        """A control that fails, or a fault that does not: INCONCLUSIVE is neither met nor broken."""
        return not self.is_met and self.verdict is not Verdict.INCONCLUSIVE

    @property
    def wanted(self) -> str:
        """What it must get, in words."""
        return "PASS" if self.is_control else f"FAIL by {' or '.join(self.seen_by)}"

    @property
    def got(self) -> str:
        """What it got, in words."""
        by = self.failed or self.inconclusive
        return self.verdict.value + (f" by {', '.join(by)}" if by else "")

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "verdict": self.verdict.value, "is_met": self.is_met}


def finding_of(planted: Fault, claim: Claim) -> Finding:
    """Compare a claim with what its fault demands."""
    checks = {check.check: check for check in claim.evidence.checks}
    failed = tuple(name for name, check in checks.items() if check.verdict is Verdict.FAIL)
    diagnosis = claim.evidence.diagnosis
    return Finding(
        code=planted.code,
        name=planted.name,
        title=planted.title,
        is_control=planted.is_control,
        seen_by=planted.seen_by,
        verdict=claim.verdict,
        failed=failed,
        inconclusive=tuple(name for name, check in checks.items() if check.verdict is Verdict.INCONCLUSIVE),
        surprising=tuple(name for name in failed if name in planted.missed_by),
        family=str(planted.family),
        diagnosed="" if diagnosis is None else diagnosis.family,
        num_tokens=claim.evidence.sizes["num_tokens_candidate"],
        num_mismatches=claim.evidence.sizes["num_mismatches_candidate"],
        num_stock_tokens=claim.evidence.sizes["num_tokens_stock"],
        num_stock_mismatches=claim.evidence.sizes["num_mismatches_stock"],
    )


def part_of(findings: Sequence[Finding]) -> SelftestPart:
    """FAIL if a control fails or a fault passes; INCONCLUSIVE if one of them got no verdict; else PASS."""
    unmet = [finding for finding in findings if not finding.is_met]
    verdict = Verdict.PASS if findings and not unmet else Verdict.INCONCLUSIVE
    if any(finding.is_broken for finding in unmet):
        verdict = Verdict.FAIL
    controls = [finding for finding in findings if finding.is_control]
    faults = [finding for finding in findings if not finding.is_control]
    return SelftestPart(
        name=NAME,
        verdict=verdict,
        summary=(
            f"{_met(faults)} of {len(faults)} planted faults seen, {_met(controls)} of {len(controls)} controls green"
        ),
        tables=(_table("Planted faults", faults), _table("Controls", controls)),
        evidence={"findings": [finding.to_json() for finding in findings]},
        problems=tuple(f"{item.code} {item.name}: must be {item.wanted}, is {item.got}" for item in unmet),
        notes=tuple(
            f"{item.code} {item.name}: {', '.join(item.surprising)} saw what it cannot see by construction"
            for item in findings
            if item.surprising
        ),
    )


def _met(findings: Sequence[Finding]) -> int:
    return sum(finding.is_met for finding in findings)


def _percent(number: int, total: int) -> str:
    return f"{100 * number / total:.2f} %" if total else "-"


def _table(title: str, findings: Sequence[Finding]) -> Table:
    rows = tuple(
        (
            item.code,
            item.name,
            item.wanted,
            item.got,
            _percent(item.num_mismatches, item.num_tokens),
            _percent(item.num_stock_mismatches, item.num_stock_tokens),
            item.diagnosed,
            "right" if item.is_met else "WRONG",
        )
        for item in findings
    )
    return Table(title=title, columns=("", "system", "must be", "is", "rate", "stock", "diagnosis", ""), rows=rows)
