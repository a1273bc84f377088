"""The toy engine as a kind of its own, for runs that make it in another process. Every reply tells who served it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from lossguard.engines.base import EngineSpec, Pace
from lossguard.records import Request, ServedOutput
from tests.gate.toy import ToyEngine, ToyTarget, bias_every_seventh

KIND = f"{__name__}:create"
SERVED_BY = "served_by"
PACE = "pace"


@dataclass
class NamedToyEngine(ToyEngine):
    """Movable; after ``ends_at`` replies it ends its process, unless that is the test's."""

    is_movable: bool = True
    ends_at: int | None = None
    home: int = 0

    def serve(self, requests: Sequence[Request]) -> Iterator[ServedOutput]:
        for number, output in enumerate(super().serve(requests)):
            if number == self.ends_at and os.getpid() != self.home:
                sys.stderr.write("the toy is over\n")
                sys.stderr.flush()
                os._exit(9)
            yield replace(output, telemetry={SERVED_BY: (float(os.getpid()),)})

    def serve_paced(self, requests: Sequence[Request], pace: Pace) -> Iterator[ServedOutput]:
        """At its own pace all the same; every reply tells the one that was asked for."""
        for output in self.serve(requests):
            yield replace(output, telemetry={**output.telemetry, PACE: (float(pace.concurrency),)})


def create(spec: EngineSpec) -> NamedToyEngine:
    """Options: ``batch_size``, ``bias``, ``movable``, ``ends_at`` with ``home`` (the test's process)."""
    given = dict(spec.options)
    bias = given.get("bias")
    return NamedToyEngine(
        ToyTarget(),
        batch_size=given.get("batch_size", 8),
        faults=(bias_every_seventh(bias),) if bias else (),
        is_movable=given.get("movable", True),
        ends_at=given.get("ends_at"),
        home=given.get("home", 0),
    )
