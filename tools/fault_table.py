"""docs/faults.md is made from the registry of faults: print it, write it (--write), or check that it is current."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable
from pathlib import Path

from lossguard_suites.adversarial.faults import FAULTS, Fault
from lossguard_suites.adversarial.faults.output_faults import OUTPUT_FAULTS
from lossguard_suites.adversarial.faults.sampling_faults import SAMPLING_FAULTS
from lossguard_suites.adversarial.faults.state_faults import STATE_FAULTS
from lossguard_suites.adversarial.faults.token_faults import TOKEN_FAULTS

PLACE = Path(__file__).parents[1] / "docs" / "faults.md"

HEAD = """# Planted faults and controls

Made by `python tools/fault_table.py --write` from `suites/lossguard_suites/adversarial/faults`; do not edit.

Each row is a fault that somebody met, expressed on a real model served by `transformers`: a logits processor or a state
edit inside generation, so that later tokens follow from the faulty prefix, or a change to what is reported about a
finished reply. F numbers come from the list of faults met elsewhere (letters are variants of ours); O are our own
faults, N our own controls. *Seen by*: the checks of which one must FAIL. *Cannot see it*: checks that are blind to it
by construction. *Family*: what a diagnosis should say; "unknown" where no pattern points anywhere.

Two things stand for what a small dense model lacks. A **schedule of drafts and acceptances** is drawn per request and
laid over plain decoding, so that state faults strike where a draft-and-verify server has them, and is reported as
telemetry. A **cache hit** is a request that the seed drew. Lengths and thresholds are scaled to prompts of about 40
tokens and replies of 64.

Strengths are those at which a fault was met, or the nearest that such a model can show; every fault takes a weaker one
(`fault("kept-drafts").at_strength(0.1)`), and none has an effect at its zero.

F1, F2, F3, F23, F24 and F27 are planted in the embedded engine's own steps too, where drafts and states are real:
`lossguard_suites.adversarial.engine_faults`, [trees.md](trees.md).
"""


def page() -> str:
    """The whole page."""
    pending = [item for item in FAULTS if item.is_pending]
    parts = [
        HEAD,
        _summary(),
        "## State\n\n" + _table(_judged(STATE_FAULTS)),
        "## Choice of a token\n\n" + _table(_judged(TOKEN_FAULTS)),
        "## Sampler\n\nGreedy replies are served right: requests ask for a temperature.\n\n"
        + _table(_judged(SAMPLING_FAULTS)),
        "## Between model and client\n\n" + _table(_judged(OUTPUT_FAULTS)),
        "## Waiting for their check\n\nStrict expected failures until the check exists.\n\n" + _pending(pending),
        "## Controls\n\nNone may fail.\n\n" + _controls(item for item in FAULTS if item.is_control),
    ]
    return "\n\n".join(part.strip() for part in parts) + "\n"


def _judged(faults: Iterable[Fault]) -> list[Fault]:
    return [item for item in faults if not item.is_pending]


def _summary() -> str:
    controls = sum(item.is_control for item in FAULTS)
    pending = sum(item.is_pending for item in FAULTS)
    return (
        f"{len(FAULTS)} in all: {len(FAULTS) - controls - pending} faults that today's checks must see, "
        f"{pending} that wait for their check, {controls} controls."
    )


def _table(faults: Iterable[Fault]) -> str:
    head = ("", "name", "what is wrong", "strength", "seen by", "cannot see it", "family", "met in")
    return _rows(
        head,
        (
            (
                item.code,
                f"`{item.name}`",
                _title(item),
                _strength(item),
                ", ".join(item.seen_by),
                ", ".join(item.missed_by),
                str(item.family),
                _sources(item),
            )
            for item in faults
        ),
    )


def _pending(faults: Iterable[Fault]) -> str:
    head = ("", "name", "what is wrong", "strength", "check to come", "met in")
    return _rows(
        head,
        (
            (item.code, f"`{item.name}`", _title(item), _strength(item), item.pending_check or "", _sources(item))
            for item in faults
        ),
    )


def _controls(faults: Iterable[Fault]) -> str:
    head = ("", "name", "what is different", "strength", "met in")
    return _rows(
        head, ((item.code, f"`{item.name}`", _title(item), _strength(item), _sources(item)) for item in faults)
    )


def _title(item: Fault) -> str:
    return f"{item.title} ({item.note})" if item.note else item.title


def _strength(item: Fault) -> str:
    return "" if item.strength is None else f"{item.strength.published:g}: {item.strength.meaning}"


def _sources(item: Fault) -> str:
    """Addresses as ``owner/name#number``."""
    links = []
    for address in item.sources:
        owner, name, _, number = address.removeprefix("https://github.com/").split("/")
        links.append(f"[{owner}/{name}#{number}]({address})")
    return ", ".join(links) or "made for this suite"


def _rows(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def main(arguments: list[str] | None = None) -> int:
    """1 if the page is not current."""
    parser = argparse.ArgumentParser(description=__doc__)
    choice = parser.add_mutually_exclusive_group()
    choice.add_argument("--write", action="store_true")
    choice.add_argument("--check", action="store_true")
    given = parser.parse_args(arguments)
    if given.write:
        PLACE.write_text(page(), encoding="utf-8")
    elif given.check:
        is_current = PLACE.exists() and PLACE.read_text(encoding="utf-8") == page()
        print(f"{PLACE.name} is {'current' if is_current else 'not current: python tools/fault_table.py --write'}")
        return 0 if is_current else 1
    else:
        print(page(), end="")
    return 0


if __name__ == "__main__":
    sys.exit(main())
