"""What ``run_gate`` returns."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from lossguard.records import Claim, Verdict

EXIT_PASS, EXIT_FAIL, EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_USAGE, EXIT_INCONCLUSIVE = 0, 1, 2, 3, 4, 10


@dataclass(frozen=True, slots=True, kw_only=True)
class GateResult:
    """Claims with verdicts and evidence; ``report`` is the JSON report, which every other form renders."""

    claims: tuple[Claim, ...]
    report: Mapping[str, Any]
    run_folder: Path

    @property
    def verdict(self) -> Verdict:
        """FAIL if any claim fails, PASS if all pass, else INCONCLUSIVE."""
        return Verdict.combine([claim.verdict for claim in self.claims])

    @property
    def exit_code(self) -> int:
        """0 all PASS, 1 any FAIL, 10 INCONCLUSIVE only (docs/exit-codes.md)."""
        codes = {Verdict.PASS: EXIT_PASS, Verdict.FAIL: EXIT_FAIL, Verdict.INCONCLUSIVE: EXIT_INCONCLUSIVE}
        return codes[self.verdict]

    def claim(self, claim_id: str) -> Claim:
        """The claim of that id, such as ``patch-41/lossless``. KeyError names the ids there are."""
        for claim in self.claims:
            if claim.id == claim_id:
                return claim
        raise KeyError(f"no claim {claim_id!r}; there are: {', '.join(claim.id for claim in self.claims)}")

    def to_json(self) -> str:
        """The JSON report (schema 1) as text."""
        return json.dumps(self.report, indent=2, allow_nan=False, ensure_ascii=False)
