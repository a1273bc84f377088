"""One lossless run and its calibration, made once: checks are pure, so tests may share them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import Phase, settings

from lossguard.checks.base import Arm, CheckInput, Thresholds
from lossguard.checks.calibrate import CalibrationInput, calibrate
from lossguard.records import Request
from tests.checks.simulated_arms import ArmSpec, beta_shares, make_arm, make_requests, with_logprobs

# A mutant is noticed by the first example that fails: the smallest one is not worth the time.
settings.register_profile("mutation", settings.get_profile("ci"), phases=(Phase.explicit, Phase.generate))


@dataclass(frozen=True, slots=True, kw_only=True)
class LosslessRun:
    """240 requests x about 55 tokens at a mismatch rate of 0.2 %, and 80 calibration requests."""

    given: CheckInput
    recomposed: Arm
    calibration: CalibrationInput
    thresholds: Thresholds


def lossless_run(seed: int) -> LosslessRun:
    """Both arms and both calibration services draw from the same per-prompt rates."""
    generator = np.random.default_rng(seed)
    prompts, tests = make_requests(80, prefix="c"), make_requests(240)

    def arm(name: str, requests: tuple[Request, ...], shares: np.ndarray) -> Arm:
        lengths = generator.integers(46, 64, size=len(requests))
        return make_arm(generator, requests, ArmSpec(name=name, lengths=lengths, shares=shares))

    shares = beta_shares(generator, 80, 0.002, 0.002)
    stock = with_logprobs(arm("stock", prompts, shares), generator, 0.05)
    recomposed = arm("stock recomposed", prompts, shares)
    calibration = CalibrationInput(
        requests=prompts, stock=stock, recomposed=recomposed, rescored=None, logit_dtype="bfloat16", seed=3
    )
    limits = calibrate(calibration)
    shares = beta_shares(generator, 240, 0.002, 0.002)
    given = CheckInput(
        requests=tests,
        stock=arm("stock", tests, shares),
        candidate=arm("candidate", tests, shares),
        thresholds=limits,
        calibration_requests=prompts,
        calibration=stock,
        expect={},
        vocab_size=1000,
        seed=17,
    )
    return LosslessRun(given=given, recomposed=recomposed, calibration=calibration, thresholds=limits)


@pytest.fixture(scope="session")
def lossless() -> LosslessRun:
    """The shared run."""
    return lossless_run(5)
