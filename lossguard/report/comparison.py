"""Two reports side by side: which claims got worse, which numbers moved, and whether they may be compared at all."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from lossguard.gate_result import EXIT_FAIL, EXIT_INCONCLUSIVE, EXIT_PASS
from lossguard.report.verdict_text import claim_headline

Json = Mapping[str, Any]
SAME_RULES = (
    ("rules", ("integrity", "rules_sha256")),
    ("prompts", ("prompts", "sha256")),
    ("temperature", ("run", "temperature")),
    ("requests", ("run", "budget", "num_requests")),
    ("tokens of a reply", ("run", "budget", "max_tokens")),
)
"""What must be the same in both: else a verdict may differ for reasons beside the candidate."""
WORSE, BETTER, SAME, GONE, NEW, UNSURE = "worse", "better", "same", "gone", "new", "unsure"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimChange:
    """One claim in both reports; ``before`` and ``after`` are headlines, empty where a report lacks the claim."""

    id: str
    change: str
    before: str
    after: str
    numbers: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """What changed from the first report to the second."""

    claims: tuple[ClaimChange, ...]
    obstacles: tuple[str, ...]  # why verdicts may differ for other reasons than the candidate
    notes: tuple[str, ...]  # what else differs, such as versions

    @property
    def exit_code(self) -> int:
        """1 if a claim got worse, 10 if that cannot be told (not comparable, gone, unsure), else 0."""
        changes = {claim.change for claim in self.claims}
        if WORSE in changes and not self.obstacles:
            return EXIT_FAIL
        if self.obstacles or changes & {WORSE, GONE, UNSURE} or not self.claims:
            return EXIT_INCONCLUSIVE
        return EXIT_PASS

    def to_json(self) -> dict[str, Any]:
        """A JSON object."""
        return {**asdict(self), "exit_code": self.exit_code}


def compare_reports(before: Json, after: Json) -> Comparison:
    """Compare claim by claim, by the ids that their authors chose. Raises KeyError or TypeError for another form."""
    old = {claim["id"]: claim for claim in before["claims"]}
    new = {claim["id"]: claim for claim in after["claims"]}
    ids = list(dict.fromkeys([*old, *new]))
    return Comparison(
        claims=tuple(_change(name, old.get(name), new.get(name)) for name in ids),
        obstacles=tuple(_obstacles(before, after)),
        notes=tuple(_notes(before, after)),
    )


def render_comparison(found: Comparison) -> str:
    """For people: claims first, then what speaks against comparing, then what else differs."""
    lines = []
    for claim in found.claims:
        arrow = f"{claim.before or 'no such claim'}  ->  {claim.after or 'no such claim'}"
        lines.append(f"{claim.change:<7} {claim.id}: {arrow}")
        lines += [f"        {number}" for number in claim.numbers]
    lines += [f"not comparable: {text}" for text in found.obstacles]
    lines += [f"differs: {text}" for text in found.notes]
    words = {EXIT_PASS: "nothing got worse", EXIT_FAIL: "a claim got worse", EXIT_INCONCLUSIVE: "INCONCLUSIVE"}
    return "\n".join([*lines, f"compare: {words[found.exit_code]} -> exit {found.exit_code}"])


def _change(name: str, old: Json | None, new: Json | None) -> ClaimChange:
    numbers = tuple(_numbers(old, new)) if old and new else ()
    return ClaimChange(
        id=name,
        change=_kind(old, new),
        before=claim_headline(old) if old else "",
        after=claim_headline(new) if new else "",
        numbers=numbers,
    )


def _kind(old: Json | None, new: Json | None) -> str:
    """By the verdict: worse if it became FAIL, unsure if INCONCLUSIVE. A gain that fell is worse under any verdict."""
    if old is None or new is None:
        return NEW if old is None else GONE
    if _is_slower(old, new):
        return WORSE
    if old["verdict"] == new["verdict"]:
        return SAME
    return {"FAIL": WORSE, "INCONCLUSIVE": UNSURE, "PASS": BETTER}[new["verdict"]]


def _is_slower(old: Json, new: Json) -> bool:
    """Whether the new gain lies under the old one beyond both bounds, each one-sided 95 %."""
    low, high = old.get("gain_lower_bound"), new.get("gain_upper_bound")
    return low is not None and high is not None and high < low


def _numbers(old: Json, new: Json) -> Iterator[str]:
    """Numbers of the tables that moved, and gains."""
    checks = {check["check"]: check for check in old["checks"]}
    for check in new["checks"]:
        before = checks.pop(check["check"], None)
        if before is None:
            yield f"{check['check']}: new, {check['verdict']}"
        elif _cells(before) != _cells(check):
            yield f"{check['check']}: {_cells(before)}  ->  {_cells(check)}"
    yield from (f"{name}: not judged any more" for name in checks)


def _cells(check: Json) -> str:
    numbers = ", ".join(check[key] for key in ("candidate", "bound") if check.get(key))
    return f"{check['verdict']} {numbers}".strip()


def _obstacles(before: Json, after: Json) -> Iterator[str]:
    for words, path in SAME_RULES:
        values = (_at(before, path), _at(after, path))
        if values[0] != values[1]:
            yield f"{words}: {_short(values[0])} before, {_short(values[1])} after"


def _notes(before: Json, after: Json) -> Iterator[str]:
    """Stock and candidates by their fingerprints' facts, and the seed."""
    if before["run"]["seed"] != after["run"]["seed"]:
        yield f"seed: {before['run']['seed']} before, {after['run']['seed']} after"
    for kind in ("stock", "candidates"):
        old, new = _flat(before["fingerprint"][kind], kind), _flat(after["fingerprint"][kind], kind)
        for name in sorted(old.keys() | new.keys()):
            if old.get(name) != new.get(name) and ".measured." not in name:
                yield f"{name}: {_short(old.get(name))} before, {_short(new.get(name))} after"


def _flat(value: Any, name: str) -> dict[str, Any]:
    if isinstance(value, Mapping):
        rows: dict[str, Any] = {}
        for key, item in value.items():
            rows |= _flat(item, f"{name}.{key}")
        return rows
    return {name: value}


def _at(report: Json, path: tuple[str, ...]) -> Any:
    value: Any = report
    for key in path:
        value = value[key]
    return value


def _short(value: Any) -> str:
    text = "absent" if value is None else str(value)
    return text if len(text) <= 60 else f"{text[:12]}..."
