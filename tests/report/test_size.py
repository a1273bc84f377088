"""What a large run costs: 10,000 events in replies of 4,096 tokens."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.report.sample import judged, report_of

pytestmark = pytest.mark.slow
NUM_REQUESTS, LENGTH, NUM_EVENTS = 50, 4096, 10_000
PROGRAM = """
import sys
from pathlib import Path
from lossguard.cli.main import run
code = run(["report", sys.argv[1], "--html"])
status = Path("/proc/self/status").read_text()  # ru_maxrss would be that of the process before exec, too
print(code, next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1])
"""


def test_a_large_report_is_small_and_made_at_once(tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    generator = np.random.default_rng(3)
    chosen = generator.choice(NUM_REQUESTS * LENGTH, NUM_EVENTS, replace=False)
    places = sorted((int(at) // LENGTH, int(at) % LENGTH) for at in chosen)
    report = report_of([judged("faulty", places, lambda *_ids: "word ", num_requests=NUM_REQUESTS, length=LENGTH)])
    points = report["claims"][0]["figures"]["events"]["candidate"]
    assert points["num_events"] == NUM_EVENTS
    points["gap_nats"] = generator.uniform(1, 40, NUM_EVENTS).round(3).tolist()  # no two alike, as in a broken stack
    points["status"] = "".join(generator.choice(list("eun"), NUM_EVENTS))
    source = tmp_path / "report.json"
    source.write_text(json.dumps(report))
    started = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(source)], capture_output=True, text=True, check=True, cwd=Path.cwd()
    )
    seconds = time.monotonic() - started
    code, kilobytes = (int(word) for word in done.stdout.split()[-2:])
    assert code == 0
    assert (tmp_path / "report.html").stat().st_size < 3_000_000
    assert kilobytes < 500_000
    assert seconds < 20, "with the start of Python"
    sys.stdout.write(f"{(tmp_path / 'report.html').stat().st_size:,} bytes, {seconds:.1f} s, {kilobytes:,} kB\n")
