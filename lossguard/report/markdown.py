"""The report as markdown, for the summary of a CI job: verdict first, a table, details of what is red."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from lossguard.report.verdict_text import (
    by_severity,
    claim_headline,
    claim_reason,
    outcome_line,
    recheck_command,
    visible,
)

Json = Mapping[str, Any]
LIMIT_BYTES = 64 * 1024
"""Of one summary. GitHub takes 1 MiB a step, and shows none of a summary that is larger."""
CELL_CHARACTERS = 400
TOKEN_CHARACTERS = 80
NUM_EXAMPLES = 3
_SPECIAL = re.compile(r"([\\`*_{}\[\]()#+!|~$@:-])")
CLOSE = "\n\n</details>\n"
CUT = "\n\n(cut here: the whole report is the JSON and the HTML file)\n"


def render_markdown(report: Json, *, link: str = "") -> str:
    """Markdown of at most ``LIMIT_BYTES``; ``link`` says where the HTML report is."""
    claims = by_severity(report["claims"])
    parts = [f"### {plain(outcome_line(report['outcome']))}", "", *_table(claims)]
    for claim in claims:
        run = {**report["run"], **claim.get("run", {})}
        parts += ["", *_details(claim, run)] if claim["verdict"] != "PASS" else []
    parts += ["", *_not_covered(claims)]
    parts += ["", f"report: {plain(link)}"] if link else []
    return cut("\n".join(parts) + "\n")


def _table(claims: Sequence[Json]) -> Iterator[str]:
    yield "| verdict | decided by |"
    yield "| --- | --- |"
    for claim in claims:
        yield f"| **{plain(claim_headline(claim))}** | {plain(claim_reason(claim), CELL_CHARACTERS)} |"


def _details(claim: Json, run: Json) -> Iterator[str]:
    yield f"<details><summary>{plain(claim_headline(claim))}</summary>"
    yield ""
    yield "| check | verdict | in words |"
    yield "| --- | --- | --- |"
    for check in by_severity(claim["checks"]):
        yield f"| {plain(check['check'])} | {check['verdict']} | {plain(check['summary'], CELL_CHARACTERS)} |"
    yield ""
    for example in claim["examples"][:NUM_EXAMPLES]:
        yield f"- {plain(example_words(example), CELL_CHARACTERS)}"
    if claim["examples"]:
        yield ""
        yield f"see it again: <code>{plain(recheck_command(claim, run, claim['examples'][0]))}</code>"
    if claim.get("diagnosis"):
        yield ""
        yield plain(claim["diagnosis"]["sentence"])
    yield ""
    yield "</details>"


def _not_covered(claims: Sequence[Json]) -> Iterator[str]:
    texts = dict.fromkeys(text for claim in claims for text in claim["does_not_cover"])
    if texts:
        yield f"not covered: {plain('; '.join(texts))}"


def example_words(example: Json) -> str:
    """One position in a sentence."""
    gap = "no such token" if example["gap_nats"] is None else f"gap {example['gap_nats']:.2f} nats"
    tokens = [
        f"{name} {example[f'{name}_id']} “{visible(example.get(f'{name}_text', ''), TOKEN_CHARACTERS)}”"
        for name in ("served", "best")
    ]
    return f"request {example['request_id']}, position {example['position']:,}: {', '.join(tokens)}, {gap}"


def plain(text: str, limit: int = 2000) -> str:
    """Any text as markdown that shows just it: no markup, no mention, no link, and one line."""
    escaped = visible(text, limit).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return _SPECIAL.sub(lambda found: f"&#{ord(found[1])};", escaped.replace("&#", "&amp;#"))


def cut(text: str) -> str:
    """At most ``LIMIT_BYTES``, cut at the end of a line."""
    encoded = text.encode()
    if len(encoded) <= LIMIT_BYTES:
        return text
    kept = encoded[: LIMIT_BYTES - len(CUT.encode()) - len(CLOSE.encode())]
    return kept[: kept.rfind(b"\n")].decode() + CLOSE + CUT
