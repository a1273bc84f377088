"""What a recorded baseline says about itself before anything is run: whose it is, and how small a fault it can show."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from lossguard.baseline.record import BaselineRecord, parse_record, read_bytes
from lossguard.checks.base import Arm
from lossguard.checks.power import PowerInput, estimate_reach


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordFacts:
    """Facts of one record."""

    claim: str
    created: str  # RFC 3339, UTC
    sha256: str  # of the record
    fingerprint_sha256: str  # of the recorded stock: equal exactly for stocks that are comparable
    detectable_excess_points: float  # smallest true excess that gets FAIL 90 times in 100


def record_facts(path: Path) -> RecordFacts:
    """Read a record and say what it can show, without its model. Raises BaselineError LG0701 to LG0703."""
    found = parse_record(read_bytes(path), path)
    record = found.record
    return RecordFacts(
        claim=record.claim,
        created=record.created,
        sha256=found.sha256,
        fingerprint_sha256=record.fingerprint.sha256,
        detectable_excess_points=estimate_reach(_power_input(record)).detectable_excess_points,
    )


def _power_input(record: BaselineRecord) -> PowerInput:
    return PowerInput(
        requests=record.calibration_requests,
        stock=Arm(name=record.name, outputs=record.calibration, scores=record.calibration_scores),
        recomposed=Arm(name=record.name, outputs=record.recomposed, scores=record.recomposed_scores),
        thresholds=record.thresholds,
        num_requests=len(record.test_requests),
        mean_tokens=sum(len(output.ids) for output in record.calibration) / max(len(record.calibration), 1),
        seed=0,  # the closed form draws nothing
    )
