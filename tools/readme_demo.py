"""The README's output of the demo, and the picture of its report, from one run.

lossguard demo && python -m tools.readme_demo .lossguard/run-0001

The text stands between two marks; the picture (docs/figures/report.png) is the top of the run's page in headless
Chromium (``make browser``), in 64 colours. ``--text`` leaves the picture alone.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from lossguard.demo_targets import DEFAULT_TARGET, Expectation, demo_target
from lossguard.report.html.page import write_html
from lossguard.report.reading import read_report
from lossguard.report.terminal import render_claim, render_header, render_outcome, render_table

Json = Mapping[str, Any]
ROOT = Path(__file__).resolve().parent.parent
START, END = "<!-- demo: begin (python -m tools.readme_demo RUN) -->\n", "<!-- demo: end -->"
PICTURE = "docs/figures/report.png"
SHOWN = "wrong-token"
WIDTH = 117
BROWSERS = ("chromium-headless-shell", "chromium", "google-chrome")
WINDOW = (1280, 820)  # pixels


def console_text(report: Json) -> str:
    """What the demo prints, without the other claims, further notes and further places; long lines are cut."""
    claim = next(claim for claim in report["claims"] if claim["candidate"] == SHOWN)
    fewer = [{**check, "notes": []} for check in claim["checks"]]
    run = {**report["run"], "folder": f".lossguard/{report['run']['id']}"}
    head = {
        "version": report["producer"]["version"],
        "stock": claim["baseline"],
        "candidates": [other["candidate"] for other in report["claims"]],
        "model": report["fingerprint"].get("model", {}).get("path", ""),
        "seed": report["run"]["seed"],
        "thresholds": report["thresholds"],
        "power": claim["power"],
    }
    parts = [
        *render_header(head).splitlines()[1:],
        render_claim({**claim, "checks": fewer, "examples": claim["examples"][:1]}, run),
        "...",
        render_outcome(report, f".lossguard/{report['run']['id']}/report.html"),
        "",
        render_table(table_rows(report, demo_target(DEFAULT_TARGET).expected)),
    ]
    return "\n".join(_cut(line) for line in "\n".join(parts).splitlines()) + "\n"


def table_rows(report: Json, expected: Sequence[Expectation]) -> list[list[str]]:
    """Candidate, what it must get, what it got. Raises SystemExit if a verdict is wrong: that is no demo to show."""
    table = [["candidate", "must be", "is"]]
    claims = {claim["candidate"]: claim for claim in report["claims"]}
    for must in expected:
        claim = claims[must.candidate]
        failed = [check["check"] for check in claim["checks"] if check["verdict"] == "FAIL"]
        if claim["verdict"] != must.verdict.value or (must.failing_check and must.failing_check not in failed):
            raise SystemExit(f"{must.candidate} is {claim['verdict']} by {failed}: not the demo's right verdict")
        wanted = f" by {must.failing_check}" if must.failing_check else ""
        got = f" by {', '.join(failed)}" if failed else ""
        table.append([must.candidate, must.verdict.value + wanted, claim["verdict"] + got])
    return table


def _cut(line: str) -> str:
    return line if len(line) <= WIDTH else f"{line[: WIDTH - 3].rstrip()}..."


def replace_block(page: str, text: str) -> str:
    """The README with ``text`` between the marks."""
    before, start, rest = page.partition(START)
    _, end, after = rest.partition(END)
    if not start or not end:
        raise SystemExit("README.md has no marks of the demo")
    return f"{before}{START}```\n{text}```\n{END}{after}"


def draw(report: Json, source: Path, target: Path) -> None:
    """The top of the page as a small PNG. Raises SystemExit where no browser is installed."""
    browser = next(filter(None, map(shutil.which, BROWSERS)), None)
    if browser is None:
        raise SystemExit("no Chromium here (make browser), or use --text")
    with tempfile.TemporaryDirectory() as folder:
        page, shot = Path(folder) / "report.html", Path(folder) / "report.png"
        claims = [{**claim, "figures": {}} for claim in report["claims"]]  # they lie below what is shown
        write_html(page, {**report, "claims": claims}, source)
        size = ",".join(map(str, WINDOW))
        options = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--user-data-dir={folder}/p"]
        command = [browser, *options, f"--window-size={size}", f"--screenshot={shot}", page.as_uri()]
        subprocess.run(command, check=True, capture_output=True, timeout=100)  # noqa: S603
        _reduce(shot, target)


def _reduce(shot: Path, target: Path) -> None:
    from PIL import Image

    with Image.open(shot) as image:
        few = image.convert("RGB").quantize(64, method=Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE)
        few.save(target, optimize=True)


def main(arguments: Sequence[str]) -> None:
    """Write the block, and the picture."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("run", type=Path, help="run folder of the demo")
    parser.add_argument("--text", action="store_true", help="leave the picture alone")
    given = parser.parse_args(arguments)
    report = read_report(given.run)
    readme = ROOT / "README.md"
    readme.write_text(replace_block(readme.read_text(encoding="utf-8"), console_text(report)), encoding="utf-8")
    if not given.text:
        draw(report, given.run, ROOT / PICTURE)


if __name__ == "__main__":
    main(sys.argv[1:])
