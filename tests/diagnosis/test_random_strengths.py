"""How often the diagnosis is right on strengths and positions that were drawn after its code was frozen."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable

import numpy as np
import pytest

from lossguard.diagnosis.families import Family
from lossguard.records import Verdict
from tests.diagnosis.toy_bench import Bench, make_bench
from tests.diagnosis.toy_faults import FAMILIES, Scenario, with_distraction

SEED = 20261129  # written last
DRAWS_PER_FAMILY = 4
LARGEST_WRONG_SHARE = 0.1


def outcomes(bench: Bench, seed: int, draws: int) -> list[tuple[Scenario, str, str]]:
    """(scenario, right/unknown/wrong/not FAIL, sentence) of every draw; right is ``unknown`` for no family."""
    found = []
    for number, make in enumerate(FAMILIES):
        rng = np.random.default_rng([seed, number])
        found += [_outcome(bench, make, rng) for _ in range(draws)]
    return found


def _outcome(
    bench: Bench, make: Callable[[np.random.Generator], Scenario], rng: np.random.Generator
) -> tuple[Scenario, str, str]:
    scenario = with_distraction(make(rng), rng)
    verdict, found = bench.judge(scenario)
    if verdict is not Verdict.FAIL:
        return scenario, "not FAIL", found.sentence
    if found.family == scenario.truth.value:
        return scenario, "right", found.sentence
    return scenario, "unknown" if found.family == Family.UNKNOWN.value else "wrong", found.sentence


@pytest.mark.slow
def test_the_named_family_is_hardly_ever_a_wrong_one() -> None:
    found = outcomes(make_bench(), SEED, DRAWS_PER_FAMILY)
    count = Counter(outcome for _, outcome, _ in found)
    judged = count["right"] + count["unknown"] + count["wrong"]
    wrong = [(scenario.truth, scenario.text, sentence) for scenario, outcome, sentence in found if outcome == "wrong"]
    assert judged >= 20
    assert len(wrong) <= LARGEST_WRONG_SHARE * judged, wrong
    assert count["right"] >= 0.75 * judged, found


def main() -> None:
    """Print a table of more draws: ``python -m tests.diagnosis.test_random_strengths [DRAWS]``."""
    import sys

    draws = int(sys.argv[1]) if len(sys.argv) > 1 else 20
    found = outcomes(make_bench(), SEED, draws)
    for scenario, outcome, sentence in found:
        if outcome in ("unknown", "wrong") and scenario.truth is not Family.UNKNOWN:
            sys.stdout.write(f"{outcome}: {scenario.truth.value}: {scenario.text}: {sentence}\n")
    for (truth, outcome), number in sorted(Counter((item.truth.value, outcome) for item, outcome, _ in found).items()):
        sys.stdout.write(f"{truth:24}{outcome:10}{number}\n")


if __name__ == "__main__":
    main()
