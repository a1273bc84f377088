"""Detection as a Markdown table: tokens per arm to 90 % detection by fault and rule, false alarms on controls."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from lossguard.selftest.detection import GATE, RED, Curve
from lossguard.selftest.intervals import Share
from lossguard.selftest.rivals import RIVALS

MOST_CONTROLS = 8
_RULES = (GATE, *RIVALS)


def detection_table(curves: Sequence[Curve], controls: Sequence[str]) -> str:
    """Two tables: faults, then lossless controls at the largest size."""
    by_key = {(curve.system, curve.rule): curve for curve in curves}
    systems = list(dict.fromkeys(curve.system for curve in curves))
    faults = [name for name in systems if name not in controls]
    lines = ["Tokens per arm from which on at least 90 of 100 samples are red:", ""]
    lines += _header(["fault", *_RULES])
    lines += [_row([name, *(_tokens(by_key[name, rule]) for rule in _RULES)]) for name in faults]
    known = [name for name in systems if name in controls]
    if known:
        largest = max(by_key[name, GATE].tokens[-1] for name in known)
        lines += ["", f"Red samples of lossless controls (false alarms) at {largest:,.0f} tokens per arm:", ""]
        lines += _header(["control", GATE, RED, *RIVALS])
        lines += [_row([name, *map(_share, shares)]) for name, shares in _control_rows(known, by_key)]
    return "\n".join(lines)


def _control_rows(known: Sequence[str], by_key: Mapping[tuple[str, str], Curve]) -> list[tuple[str, list[Share]]]:
    """A row for each control; where there are many, one for all and those of which lossguard finds a sample red."""
    rows = [(name, [by_key[name, rule].shares[-1] for rule in (GATE, RED, *RIVALS)]) for name in known]
    if len(rows) <= MOST_CONTROLS:
        return rows
    columns = zip(*(shares for _, shares in rows), strict=True)
    together = [
        Share(count=sum(share.count for share in column), number=sum(share.number for share in column))
        for column in columns
    ]
    return [(f"all {len(rows)}", together), *((name, shares) for name, shares in rows if shares[1].count)]


def _header(columns: Sequence[str]) -> list[str]:
    return [_row(columns), _row(["---"] * len(columns))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _tokens(curve: Curve) -> str:
    found = curve.tokens_to_detection
    if found is not None:
        at_once = found == curve.tokens[0]
        return f"{'under ' if at_once else ''}{found:,.0f}"
    last = curve.shares[-1].value
    return f"not by {curve.tokens[-1]:,.0f} ({100 * last:.0f} %)"


def _share(share: Share) -> str:
    return f"{100 * share.value:.0f} % ({100 * share.low:.0f}-{100 * share.high:.0f})"
