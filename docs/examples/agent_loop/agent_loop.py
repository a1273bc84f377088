"""The inner step of an agent loop: judge one candidate patch, promote it or send the findings back.

    python agent_loop.py my_package.patch_41:generate --config lossguard.toml

The patch is a function ``generate(prompts, max_new_tokens) -> replies``. Exit code 0: promoted.
"""

import argparse
import sys
from importlib import import_module
from pathlib import Path

from lossguard import GateResult, Plan, load_config, run_gate, systems


def judge(patch: str, config: Path, budget: str) -> GateResult:
    """One verdict. Configuration and checks are the loop's own, never the agent's: it hands over a function."""
    module, _, function = patch.partition(":")
    candidate = systems.from_callable(getattr(import_module(module), function), name="patch")
    return run_gate(Plan(load_config(config), baseline="stock", candidates=[candidate], budget=budget))


def findings(result: GateResult) -> list[str]:
    """What the agent is told: every check that did not pass, and the first places where replies went wrong."""
    evidence = result.claim("patch/lossless").evidence
    checks = [
        f"{check.check} {check.verdict.value}: {check.summary}"
        for check in evidence.checks
        if not check.verdict.is_pass
    ]
    places = [f"request {place['request_id']}, position {place['position']}" for place in evidence.examples[:3]]
    return checks + places


def main() -> int:
    """Promote on PASS alone: FAIL and INCONCLUSIVE both go back to the agent."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("patch", help="module:function")
    parser.add_argument("--config", type=Path, default=Path("lossguard.toml"))
    parser.add_argument("--budget", default="quick")
    given = parser.parse_args()
    result = judge(given.patch, given.config, given.budget)
    if result.verdict.is_pass:
        print(f"promoted: {given.patch} is lossless ({result.run_folder})")
        return 0
    print(f"not promoted: {given.patch} is {result.verdict.value} ({result.run_folder})")
    print("\n".join(f"  {line}" for line in findings(result)))
    return 1


if __name__ == "__main__":
    sys.exit(main())
