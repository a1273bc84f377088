"""The requests of a campaign: test prompts to be timed, and other prompts to warm up with."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from lossguard.plan import Budget
from lossguard.records import Request
from lossguard.run_folder import RunFolder
from lossguard.stages.timing.design import fixed_length, stratum
from lossguard.stages.workspace import Workspace, prepare_requests
from lossguard.timing_plan import Timing

FOLDER = "timing"
SMALLEST_SPLIT = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """What is served: the same for every pair, but for the nonces."""

    timed: tuple[Request, ...]
    warm_up: tuple[Request, ...]
    sha256: str  # of the prompts, as their set has it

    @property
    def strata(self) -> tuple[str, ...]:
        """Stratum of each timed request."""
        return tuple(stratum(request) for request in self.timed)

    def adapted(self, supported: frozenset[str]) -> tuple[Suite, str]:
        """The same with replies of a fixed length, as far as the engines can, and how."""
        reason = fixed_length(self.timed[0].sampling, supported)[1]
        return replace(self, timed=_fixed(self.timed, supported), warm_up=_fixed(self.warm_up, supported)), reason

    def identity(self, timing: Timing) -> str:
        """Hash of everything that decides what a pair measures, beside systems and devices."""
        facts: dict[str, Any] = {
            "requests": [[list(request.prompt_ids), request.sampling.max_tokens] for request in self.timed],
            **conditions(timing),
        }
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()


def conditions(timing: Timing) -> dict[str, Any]:
    """What makes two campaigns of one suite the same kind of measurement."""
    return {
        "requests": timing.requests,
        "tokens": timing.tokens,
        "warm_up": timing.warm_up,
        "metric": timing.metric,
        "concurrency": timing.concurrency,
        "relaunch": timing.relaunch,
        "nonce_tokens": timing.nonce_tokens,
        "arrivals_per_second": timing.arrivals_per_second,
    }


def timing_workspace(workspace: Workspace, timing: Timing) -> Workspace:
    """A workspace in the folder ``timing`` of the run, whose budget is the campaign's."""
    sizes = Budget(
        name="timing",
        num_requests=timing.requests,
        max_tokens=timing.tokens,
        num_calibration=max(timing.warm_up, SMALLEST_SPLIT),
    )
    plan = replace(workspace.plan, budget=sizes, temperature=0.0, repeats=1)
    return replace(workspace, plan=plan, folder=RunFolder(workspace.folder.system(FOLDER)))


def prepare_suite(workspace: Workspace, timing: Timing) -> Suite:
    """The suite of a timing workspace, read back if it is on disk."""
    requests = prepare_requests(workspace)
    return Suite(timed=requests.test, warm_up=requests.calibration[: timing.warm_up], sha256=requests.sha256)


def _fixed(requests: Sequence[Request], supported: frozenset[str]) -> tuple[Request, ...]:
    return tuple(replace(request, sampling=fixed_length(request.sampling, supported)[0]) for request in requests)
