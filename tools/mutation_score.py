"""What a mutmut run found: killed and surviving mutants by module.

``python tools/mutation_score.py [FOLDER] [--survivors FILE]`` after ``mutmut run``; exit code 1 under the limit.
Covered: mutants whose functions a test reaches, and those that no test reaches (they count as survivors).
Not covered: statements outside functions, which mutmut does not change.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

LIMIT = 0.90
WORDS = {
    **dict.fromkeys((1, 3), "killed"),
    **dict.fromkeys((24, 36, 152, 255, -24), "timeout"),  # it never ended: seen, and counted as killed
    **dict.fromkeys((-11, -9), "crash"),
    **dict.fromkeys((5, 33), "no test"),
    0: "survived",
    34: "skipped",
}
KILLED = frozenset({"killed", "timeout", "crash"})


def outcomes(folder: Path) -> Iterator[tuple[str, str, str]]:
    """(module, mutant, outcome) of every mutant that was tried or that no test reaches."""
    for path in sorted(folder.rglob("*.meta")):
        data = json.loads(path.read_text(encoding="utf-8"))
        for mutant, code in data["exit_code_by_key"].items():
            if code is not None:
                yield path.name.removesuffix(".py.meta"), mutant, WORDS.get(code, f"exit {code}")


def table(found: list[tuple[str, str, str]]) -> tuple[str, float]:
    """Text by module, and the share killed."""
    count = Counter((module, outcome in KILLED) for module, _, outcome in found if outcome != "skipped")
    lines = [f"{'module':26}{'killed':>8}{'left':>6}{'share':>8}"]
    for module in sorted({module for module, _ in count}):
        killed, left = count[module, True], count[module, False]
        lines.append(f"{module:26}{killed:8}{left:6}{killed / (killed + left):8.1%}")
    killed = sum(number for (_, is_killed), number in count.items() if is_killed)
    total = sum(count.values())
    share = killed / total if total else 0.0
    lines.append(f"{'all':26}{killed:8}{total - killed:6}{share:8.1%}")
    lines.append(", ".join(f"{word} {number}" for word, number in Counter(word for *_, word in found).most_common()))
    return "\n".join(lines), share


def main() -> int:
    """Print the table; write survivors with their outcome."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path, nargs="?", default=Path("mutants"))
    parser.add_argument("--survivors", type=Path, help="write their names here, one a line")
    arguments = parser.parse_args()
    found = list(outcomes(arguments.folder))
    text, share = table(found)
    print(text)
    if arguments.survivors:
        names = [f"{mutant} {outcome}" for _, mutant, outcome in found if outcome not in KILLED]
        arguments.survivors.write_text("\n".join(names) + "\n", encoding="utf-8")
    return int(share < LIMIT)


if __name__ == "__main__":
    sys.exit(main())
