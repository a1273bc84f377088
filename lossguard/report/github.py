"""GitHub Actions: annotations on stdout, the step summary, and outputs of the step. No token and no network.

Limits that GitHub sets: 10 errors a step, 1 MiB of summary a step. Ours are lower.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from lossguard.report.markdown import example_words, render_markdown
from lossguard.report.verdict_text import by_severity, claim_headline, claim_reason, visible
from lossguard.run_folder import storage

Json = Mapping[str, Any]
MAX_ANNOTATIONS = 9
MESSAGE_CHARACTERS = 1000


def is_github(environment: Mapping[str, str]) -> bool:
    """Whether this process runs in a GitHub Actions step."""
    return environment.get("GITHUB_ACTIONS") == "true"


def annotation_lines(report: Json) -> list[str]:
    """A workflow command per red claim, worst first, at most ten in all."""
    red = [claim for claim in by_severity(report["claims"]) if claim["verdict"] != "PASS"]
    lines = [_annotation(claim) for claim in red[:MAX_ANNOTATIONS]]
    if len(red) > MAX_ANNOTATIONS:
        lines.append(f"::error title=lossguard::and {len(red) - MAX_ANNOTATIONS} more claims that are not PASS")
    return lines


def _annotation(claim: Json) -> str:
    message = f"{claim_headline(claim)}: {claim_reason(claim)}"
    if claim["examples"]:
        message += f"\n{example_words(claim['examples'][0])}"
    lines = "\n".join(visible(line, MESSAGE_CHARACTERS) for line in message.split("\n"))
    title = _property(f"lossguard {claim['id']}")
    place = f"file={_property(claim['file'])}," if claim.get("file") else ""
    return f"::error {place}title={title}::{_data(lines)}"


def outputs(report: Json, *, json_path: str, html_path: str = "") -> dict[str, str]:
    """What later steps read as ``steps.ID.outputs.NAME``."""
    outcome = report["outcome"]
    return {
        "verdict": outcome["verdict"],
        "exit-code": str(outcome["exit_code"]),
        "report": json_path,
        **({"html": html_path} if html_path else {}),
    }


def write_github(report: Json, environment: Mapping[str, str], *, json_path: str, html_path: str = "") -> list[str]:
    """Append summary and outputs to the files that the environment names; return the annotations for stdout.

    A file that the environment does not name is not written. Raises StorageError LG0607.
    """
    named = outputs(report, json_path=json_path, html_path=html_path)
    _append(environment.get("GITHUB_STEP_SUMMARY"), render_markdown(report, link=html_path or json_path))
    _append(environment.get("GITHUB_OUTPUT"), "".join(f"{name}={visible(text)}\n" for name, text in named.items()))
    return annotation_lines(report)


def _append(path: str | None, text: str) -> None:
    if path:
        with storage(Path(path)), Path(path).open("a", encoding="utf-8") as file:
            file.write(text)


def _data(text: str) -> str:
    return text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A")


def _property(text: str) -> str:
    return _data(visible(text, 200)).replace(":", "%3A").replace(",", "%2C")
