"""The scenarios of loop_timing's tables 1, 3, 4 and 10."""

from __future__ import annotations

from lossguard.timing.simulation.model import Scenario

EVEN = (
    Scenario(name="S0 normal 1 %, no device or launch effect", heavy_tails=False, device_effect=0.0),
    Scenario(name="S1 heavy 1 %, device 2 %"),
    Scenario(name="S2 = S1 + launch noise 0.2 %", launch_noise=0.002),
    Scenario(name="S3 = S1 + launch noise 0.5 %", launch_noise=0.005),
    Scenario(name="S4 = S2 + request gains differ by 2 %", launch_noise=0.002, heterogeneity=0.02),
)
SKEWED_NAME = "S5 = S2 + a tenth of requests loses 8 %"
NOISIER_CANDIDATE = Scenario(
    name="table 10: candidate with 4 x the launch noise", launch_noise=0.002, candidate_launch_noise=0.008,
    device_effect=0.0,
)  # fmt: skip
HOSTS = (
    Scenario(name="noise 0.3 %, launch 0.05 %", request_noise=0.003, launch_noise=0.0005),
    Scenario(name="noise 1 %, launch 0.2 %", request_noise=0.01, launch_noise=0.002),
    Scenario(name="noise 3 %, launch 0.5 %", request_noise=0.03, launch_noise=0.005),
)
SEQUENTIAL = Scenario(name="noise 1 %, launch 0.3 %", launch_noise=0.003)
SEQUENTIAL_NOISIER = Scenario(
    name="the same, candidate with 4 x the launch noise", launch_noise=0.003, candidate_launch_noise=0.012
)


def skewed(num_requests: int, gain: float = 0.01) -> Scenario:
    """S5: nine requests of ten gain 1 point over the mean, one loses 9 points against it."""
    return Scenario(
        name=f"{SKEWED_NAME}, n = {num_requests}",
        gain=gain,
        launch_noise=0.002,
        mixture=True,
        num_requests=num_requests,
    )
