"""Simulated sums taken apart into tokens again, so that the checks themselves can judge the same comparison."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from lossguard.checks.base import Arm, CheckInput, Thresholds
from lossguard.checks.symmetry import NUM_BINS
from lossguard.records import Request, SamplingParams
from lossguard.selftest.draw import POSITION_EDGES, ArmSums, Comparisons
from lossguard.selftest.statistics import StockStatistics
from tests.checks.simulated_arms import STOP_ID, VOCAB_SIZE, make_outputs, make_scores
from tests.selftest.conftest import DELTA, TIE_GAPS


def as_check_input(
    given: Comparisons, run: int, statistics: StockStatistics, thresholds: Thresholds, seed: int
) -> CheckInput:
    """Comparison ``run`` as a check sees it."""
    requests = _requests(given, run, statistics)
    calibrating = tuple(replace(request, id=f"c-{request.id}") for request in requests)
    calibrating = calibrating[: given.calibration.tokens.shape[1]]
    return CheckInput(
        requests=requests,
        stock=_arm("stock", given.stock, run, requests),
        candidate=_arm("candidate", given.candidate, run, requests),
        thresholds=thresholds,
        calibration_requests=calibrating,
        calibration=_arm("stock", given.calibration, run, calibrating),
        expect={},
        vocab_size=VOCAB_SIZE,
        seed=seed,
    )


def _requests(given: Comparisons, run: int, statistics: StockStatistics) -> tuple[Request, ...]:
    sampling = SamplingParams(max_tokens=64, stop_ids=(STOP_ID,))
    return tuple(
        Request(
            id=str(index),
            prompt_ids=(3,) * int(statistics.prompt_length[row]),
            sampling=sampling,
            set=statistics.sets[statistics.prompt_set[row]],
            cluster=str(index),
        )
        for index, row in enumerate(given.prompts.row[run])
    )


def _arm(name: str, sums: ArmSums, run: int, requests: tuple[Request, ...]) -> Arm:
    columns = [_tokens_of(sums, run, index) for index in range(len(requests))]
    gap, second = (np.concatenate([column[part] for column in columns]) for part in (0, 1))
    offsets = np.concatenate([[0], np.cumsum([len(column[0]) for column in columns])]).astype(np.int64)
    scores = make_scores(gap, offsets, [request.id for request in requests], second)
    return Arm(name=name, outputs=make_outputs(requests, scores), scores=scores)


def _tokens_of(sums: ArmSums, run: int, index: int) -> tuple[np.ndarray, np.ndarray]:
    """Gaps and top-2 gaps of one reply: mismatches in their position buckets, ties where there is room."""
    number = int(sums.tokens[run, index])
    gap, second = np.zeros(number), np.full(number, 3.0)
    last = number - 1
    taken = _mismatch_positions(sums, run, index, last)
    gap[taken] = second[taken] = 2 * DELTA
    free = [at for at in range(number) if at not in set(taken.tolist())]
    for tie_bin in range(NUM_BINS):
        for at in range(int(sums.ties[run, index, tie_bin])):
            place = free.pop()
            second[place] = TIE_GAPS[tie_bin]
            gap[place] = TIE_GAPS[tie_bin] if at < int(sums.lower[run, index, tie_bin]) else 0.0
    return gap, second


def _mismatch_positions(sums: ArmSums, run: int, index: int, last: int) -> np.ndarray:
    starts = [0, *POSITION_EDGES.tolist()]
    positions: list[int] = []
    at_end = int(sums.finish_mismatches[run, index])
    for bucket, number in enumerate(sums.mismatches_at[run, index].astype(int).tolist()):
        inside = [at for at in range(starts[bucket], last + 1) if bucket == _bucket(at)]
        if last in inside:
            inside = [at for at in inside if at != last]
            positions += [last] * min(at_end, 1)
            number -= at_end
        positions += inside[:number]
    return np.array(positions, dtype=np.int64)


def _bucket(position: int) -> int:
    return int(np.searchsorted(POSITION_EDGES, position, side="right"))
