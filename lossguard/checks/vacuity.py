"""The vacuity check: did the path under test run at all?"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from lossguard.checks.base import Arm, CheckInput
from lossguard.checks.exercise import exercise_rows
from lossguard.checks.problems import inconclusive
from lossguard.checks.table_text import percent
from lossguard.records import CheckResult, Request, Verdict

DIVERGING = "diverging"
"""Key of ``expect`` that asks for replies different from stock's, instead of a telemetry column."""


SERVER_WIDE = "server_"
"""Prefix of telemetry columns that count for a whole server between two replies."""


class VacuityCheck:
    """What the candidate's config expects to have happened (``expect``, ``exercise``), from telemetry and arrivals.

    Covered: runs in which the mechanism never fired (nothing drafted, nothing preempted, no cache hit).
    Not covered: whether the telemetry tells the truth; it can only turn a PASS into INCONCLUSIVE.
    """

    name: str = "vacuity"
    covers: str = "runs in which the path under test never ran"
    does_not_cover: str = "whether the engine's own counters are true"

    def applies(self, requests: Sequence[Request]) -> bool:
        """Always."""
        return True

    def run(self, given: CheckInput) -> CheckResult:
        """PASS if every expectation holds and every exercise took place (or there is none), else INCONCLUSIVE."""
        if (problem := given.thresholds.problems.get(self.name)) is not None:
            return inconclusive(self.name, problem)
        if not given.expect and not given.exercise:
            return CheckResult(check=self.name, verdict=Verdict.PASS, summary="nothing expected")
        rows = [_judge(given, name, given.expect[name]) for name in sorted(given.expect)] + exercise_rows(given)
        failed = [row for row in rows if not row["holds"]]
        shown = failed or rows
        return CheckResult(
            check=self.name,
            verdict=Verdict.INCONCLUSIVE if failed else Verdict.PASS,
            summary="; ".join(row["detail"] for row in shown),
            evidence={"expectations": rows},
            notes=("a run in which the path under test did not run proves nothing",) if failed else (),
        )


def _judge(given: CheckInput, name: str, wanted: Any) -> dict[str, Any]:
    if name == DIVERGING:
        seen: float | None = diverging_share(given)
        text = f"{percent(seen or 0.0)} of requests diverge from stock"
    else:
        seen = _column_sum(given.candidate, name)
        text = f"no usable telemetry column {name!r}" if seen is None else f"{name}: {seen:,.6g} in total"
    if isinstance(wanted, bool):
        holds = seen is not None and (seen > 0) is wanted
        detail = text if holds else f"{text}, expected {'some' if wanted else 'none'}"
    elif isinstance(wanted, (int, float)):
        holds = seen is not None and seen >= wanted
        detail = text if holds else f"{text}, expected at least {wanted}"
    else:
        holds, detail = False, f"{name}: the expectation {wanted!r} is neither a truth value nor a number"
    return {"name": name, "expected": str(wanted), "seen": seen, "holds": holds, "detail": detail}


def _column_sum(arm: Arm, name: str) -> float | None:
    """Sum over all replies; None if no reply has the column or a value is not finite.

    Where replies lack it, the counter of the whole server stands in: it says that the path ran, not for whom.
    """
    columns = [output.telemetry[name] for output in arm.outputs if name in output.telemetry]
    columns = columns or [
        output.telemetry[SERVER_WIDE + name] for output in arm.outputs if SERVER_WIDE + name in output.telemetry
    ]
    values = [float(value) for column in columns for value in column]
    return math.fsum(values) if values and all(map(math.isfinite, values)) else None


def diverging_share(given: CheckInput) -> float:
    """Share of requests whose ids differ from stock's; 0 if there is none."""
    pairs = list(zip(given.candidate.outputs, given.stock.outputs, strict=False))
    different = sum(1 for candidate, stock in pairs if candidate.ids != stock.ids)
    return different / len(pairs) if pairs else 0.0
