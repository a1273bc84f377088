"""Canaries: a few of stock's calibration replies, scored before any candidate runs here and again after each.

Both times they are scored in the same batches: what differs then is the scorer, and no padding and no neighbours, whose
rounding in bfloat16 moves all logits of a position together by more than the gap noise q.
"""

from __future__ import annotations

from collections.abc import Sequence

from lossguard.checks.base import Arm
from lossguard.records import ForcedScores, Request
from lossguard.seals import is_sealed
from lossguard.stages.forcing import ForcingTask, force, shards_of
from lossguard.stages.workspace import Workspace

NUM_CANARIES = 4


def score_canaries(
    workspace: Workspace, requests: Sequence[Request], stock: Arm, *, system: str
) -> ForcedScores | None:
    """Scores of the canaries, kept in the folder of ``system``; None for an old run that kept none.

    ``requests`` are the calibration requests, ``stock`` their replies in the same order.
    """
    chosen = range(0, len(requests), max(1, len(requests) // NUM_CANARIES))[:NUM_CANARIES]
    task = ForcingTask(
        run=workspace.folder.path,
        requests=[requests[index] for index in chosen],
        arms=[[stock.outputs[index] for index in chosen]],
        stems=[workspace.folder.system(system) / "canary-scores"],
    )
    if workspace.is_offline and not is_sealed(task.run, shards_of(task.stems[0], len(task.requests))[0]):
        return None
    (scores,) = force(workspace.scorer, task, lambda _num_tokens: None)
    return scores
