"""Recording: stock served and scored alone, as the first half of a run, into one record."""

from __future__ import annotations

import datetime

import lossguard
from lossguard.baseline.record import BaselineRecord, claim_parameters
from lossguard.fingerprint import Fingerprint
from lossguard.stages.arms import served
from lossguard.stages.calibration import run_calibration
from lossguard.stages.estimate import estimate_cost
from lossguard.stages.facts import run_fingerprints, with_scorer
from lossguard.stages.workspace import Workspace, prepare_requests


def record_stock(workspace: Workspace, claim: str, rules_sha256: str) -> BaselineRecord:
    """Serve stock's calibration and test replies, score the former, freeze the thresholds, and gather it all.

    What the run folder has already is read back; ``rules_sha256`` is of the rules that froze the thresholds.
    """
    plan, requests = workspace.plan, prepare_requests(workspace)
    fingerprints = run_fingerprints(workspace)
    estimate_cost(workspace, requests)
    calibration = run_calibration(workspace, requests)
    test = served(workspace, plan.stock, requests.test)
    return BaselineRecord(
        name=plan.stock.name,
        claim=claim,
        created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        producer_version=lossguard.__version__,
        rules_sha256=rules_sha256,
        parameters=claim_parameters(plan),
        scorer=with_scorer(workspace, fingerprints)["scorer"],
        prompts_sha256=requests.sha256,
        prompt_reasons=requests.reasons,
        calibration_requests=requests.calibration,
        test_requests=requests.test,
        calibration=tuple(calibration.stock.outputs),
        recomposed=tuple(calibration.recomposed.outputs),
        test=tuple(test),
        calibration_scores=calibration.stock.scores,
        recomposed_scores=calibration.recomposed.scores,
        thresholds=calibration.thresholds,
        fingerprint=Fingerprint.from_json(fingerprints["stock"]),
    )
