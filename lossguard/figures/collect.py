"""All pictures of one claim."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from lossguard.checks.base import CheckInput
from lossguard.checks.problems import all_greedy
from lossguard.figures.event_points import event_points
from lossguard.figures.gap_histogram import gap_histogram
from lossguard.figures.position_rates import position_rates
from lossguard.figures.power_curve import power_curve


def collect_figures(given: CheckInput, power: Mapping[str, Any]) -> dict[str, Any]:
    """JSON by figure. Sampled replies have none: a sampled token under the best one is no mismatch."""
    if not all_greedy(given.requests):
        return {}
    return {
        "gaps": gap_histogram(given),
        "positions": position_rates(given),
        "events": event_points(given),
        **({"power": power_curve(given.thresholds, power)} if power.get("num_tokens") else {}),
    }
