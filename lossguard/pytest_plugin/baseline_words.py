"""A baseline's records in the header's words: which stock, from when, and how small a fault they can show."""

from __future__ import annotations

from typing import TYPE_CHECKING

from lossguard.errors import LossguardError
from lossguard.pytest_plugin.baselines import Place
from lossguard.pytest_plugin.summary import power_words

if TYPE_CHECKING:
    from lossguard.gate import RecordFacts

HASH_LENGTH = 8


def record_words(place: Place) -> str:
    """``stock@1f0c2a9b (3 records of 2026-11-29 in ...)  power: ...``; the hash is that of stock's fingerprint.

    A record that cannot be read is counted here; a claim that needs it ends the session later.
    """
    from lossguard import gate

    facts: list[RecordFacts] = []
    for path in place.record_files:
        try:
            facts.append(gate.record_facts(path))
        except LossguardError:  # the claim that needs it says what is wrong with it
            continue
    num_records = len(place.record_files)
    return f"{place.name}{_hashes(facts)} ({_counts(facts, num_records)} in {place.root / place.name}{_power(facts)}"


def _hashes(facts: list[RecordFacts]) -> str:
    """A name per stock that was recorded: one, unless records are from several machines or versions."""
    found = dict.fromkeys(fact.fingerprint_sha256[:HASH_LENGTH] for fact in facts)
    return f"@{'+'.join(found)}" if found else ""


def _counts(facts: list[RecordFacts], num_records: int) -> str:
    words = f"{num_records} record{'s' if num_records > 1 else ''}"
    days = sorted({fact.created[:10] for fact in facts})
    words += f" of {days[0]}{f' to {days[-1]}' if len(days) > 1 else ''}" if days else ""
    num_broken = num_records - len(facts)
    return words + (f", {num_broken} of them cannot be read" if num_broken else "")


def _power(facts: list[RecordFacts]) -> str:
    closing = "; claims without one run live)"
    if not facts:
        return closing
    return f"{closing}  power: {power_words(max(fact.detectable_excess_points for fact in facts))}"
