"""Pack raw runs of ``device_campaigns`` into one table of requests: ``... campaign_fixture FOLDER OUT PHASE...``.

A row is a reply on the client's clock. Devices are numbered, process ids and UUIDs left out; the phases' plans go
into ``phases.json`` beside it.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from lossguard.stages.timing.run_log import read_run

COLUMNS = ("phase", "pair", "run", "arm", "device", "index", "sent_ns", "received_ns", "num_tokens", "ids", "problems")
ARM_NAMES = ("stock", "candidate")


def rows_of(folder: Path) -> Iterator[tuple[str | int, ...]]:
    """All replies of a phase; times count from the phase's first request."""
    names = json.loads(folder.joinpath("phase.json").read_text(encoding="utf-8"))["device_names"]
    records = [record for path in sorted(folder.glob("runs/*.jsonl")) if (record := read_run(path)) is not None]
    begun = min(reply.sent_ns for record in records for reply in record.replies)
    for record in records:
        for arm, name in enumerate(ARM_NAMES):
            device = names.index(record.head["devices"][name])
            for reply in record.arm(arm):
                clock = (reply.sent_ns - begun, reply.received_ns - begun)
                place = (folder.name, record.head["pair"], record.head["run"], arm, device, reply.index)
                yield (*place, *clock, reply.num_tokens, reply.ids_sha256[:8], len(record.problems))


def main(arguments: Sequence[str]) -> int:
    """Write ``requests.csv.gz`` and ``phases.json``."""
    folder, out, names = Path(arguments[0]), Path(arguments[1]), arguments[2:]
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for name in names:
        writer.writerows(rows_of(folder / name))
    out.joinpath("requests.csv.gz").write_bytes(gzip.compress(text.getvalue().encode(), mtime=0))
    phases = {}
    for name in names:
        facts = json.loads(folder.joinpath(name, "phase.json").read_text(encoding="utf-8"))
        phases[name] = {key: facts[key] for key in ("phase", "extra_seconds", "extra_cycles") if key in facts}
        phases[name]["phase"]["devices"] = [f"cuda:{index}" for index in range(len(facts["device_names"]))]
    out.joinpath("phases.json").write_text(json.dumps(phases, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
