"""The built-in checks, in the order of the report's table."""

from __future__ import annotations

from lossguard.checks.base import Check, CheckInput
from lossguard.checks.buckets import BucketsCheck
from lossguard.checks.burst import BurstCheck
from lossguard.checks.event import EventCheck
from lossguard.checks.logprob import LogprobCheck
from lossguard.checks.near_tie import NearTieCheck
from lossguard.checks.parameters import ParametersCheck
from lossguard.checks.rate import RateCheck
from lossguard.checks.sampling import SamplingCheck
from lossguard.checks.scores import ScoresCheck
from lossguard.checks.stop import StopCheck
from lossguard.checks.strict import StrictCheck
from lossguard.checks.structure import StructureCheck
from lossguard.checks.support import SupportCheck
from lossguard.checks.text import TextCheck
from lossguard.checks.usage import UsageCheck
from lossguard.checks.vacuity import VacuityCheck


def builtin_checks() -> tuple[Check, ...]:
    """One of each. Rows of the contract always apply; statistics are those of greedy tokens, or of sampled ones."""
    return (
        RateCheck(),
        EventCheck(),
        StructureCheck(),
        StopCheck(),
        ParametersCheck(),
        TextCheck(),
        NearTieCheck(),
        BurstCheck(),
        BucketsCheck(),
        SamplingCheck(),
        SupportCheck(),
        LogprobCheck(),
        UsageCheck(),
        VacuityCheck(),
        ScoresCheck(),
    )


def asked_checks(given: CheckInput) -> tuple[Check, ...]:
    """The checks that a plan asks for by name: strict."""
    return (StrictCheck(),) if given.is_strict else ()
