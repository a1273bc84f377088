"""Run the live selftest and keep its figures: findings as JSON, served tokens and scores in few bytes.

python tools/live_selftest.py --full --device cuda --workers 6 --folder RUNS --out OUT
python tools/live_selftest.py --collect --folder RUNS --out OUT    (also after a run that was cut short)
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from lossguard.cli.console import ConsoleListener
from lossguard.gate_result import EXIT_PASS
from lossguard.selftest.base import DEFAULT_SEED, SelftestOptions, SelftestResult, render
from lossguard_suites.adversarial.compact import write_compact
from lossguard_suites.adversarial.live import run


def main(arguments: list[str] | None = None) -> int:
    """0: every planted fault was seen and every control was green."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--full", action="store_true", help="all of them, not the eight of CI")
    parser.add_argument("--device", help="such as cuda")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--seed", type=int, default=DEFAULT_SEED)
    parser.add_argument("--folder", type=Path, default=Path(".lossguard"), help="where run folders are made")
    parser.add_argument("--out", type=Path, required=True, help="findings.json or compact/ is written here")
    parser.add_argument("--collect", action="store_true", help="run nothing: keep the figures of the runs in --folder")
    given = parser.parse_args(arguments)
    options = SelftestOptions(
        seed=given.seed, is_full=given.full, folder=given.folder, num_workers=given.workers, device=given.device
    )
    given.out.mkdir(parents=True, exist_ok=True)
    if given.collect:
        write_compact(sorted(path.parent for path in given.folder.glob("run-*/plan.json")), given.out / "compact")
        return EXIT_PASS
    part = run(options, ConsoleListener())
    print(render(part))
    (given.out / "findings.json").write_text(json.dumps(part.to_json(), indent=1), encoding="utf-8")
    return SelftestResult(parts=(part,)).exit_code


if __name__ == "__main__":
    sys.exit(main())
