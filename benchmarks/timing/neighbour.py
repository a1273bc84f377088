"""A power-hungry neighbour on one GPU: ``python -m benchmarks.timing.neighbour --busy-ms 2 --idle-ms 40 --seconds 60``.

Large matrix products for some milliseconds, then a pause, over and over. It slows whatever else runs on that device
and warms it, which a comparison of two devices must not take for a property of a system.
"""

from __future__ import annotations

import argparse
import time

import torch

SIZE = 8_192


def disturb(*, busy_seconds: float, idle_seconds: float, total_seconds: float, device: str = "cuda:0") -> int:
    """Alternate work and pauses on a device until the time is up; the number of matrix products done."""
    left, right = (torch.randn(SIZE, SIZE, device=device, dtype=torch.bfloat16) for _ in range(2))
    torch.mm(left, right)
    torch.cuda.synchronize(device)
    print("at work", flush=True)
    end = time.monotonic() + total_seconds
    num_products = 0
    while time.monotonic() < end:
        pause_at = time.monotonic() + busy_seconds
        while time.monotonic() < pause_at:
            torch.mm(left, right)
            torch.cuda.synchronize(device)
            num_products += 1
        time.sleep(idle_seconds)
    return num_products


def main() -> None:
    """Disturb the first visible device."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--busy-ms", type=float, default=2.0)
    parser.add_argument("--idle-ms", type=float, default=40.0)
    parser.add_argument("--seconds", type=float, default=60.0)
    given = parser.parse_args()
    num_products = disturb(
        busy_seconds=given.busy_ms / 1e3, idle_seconds=given.idle_ms / 1e3, total_seconds=given.seconds
    )
    print(f"{num_products} products of {SIZE} x {SIZE}")


if __name__ == "__main__":
    main()
