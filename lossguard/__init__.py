"""lossguard: is a change to an LLM serving stack still lossless, and is it really faster?"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lossguard import systems
    from lossguard.config import load_config
    from lossguard.gate import run_gate
    from lossguard.gate_result import GateResult
    from lossguard.plan import Plan
    from lossguard.records import Claim, Evidence, Request, SamplingParams, ServedOutput, Verdict
    from lossguard.timing_plan import Timing

__version__ = "0.1.0"
__all__ = ["Claim", "Evidence", "GateResult", "Plan", "Request", "SamplingParams", "ServedOutput"]
__all__ += ["Timing", "Verdict", "load_config", "run_gate", "systems"]
_HOMES = {"Plan": "plan", "load_config": "config", "run_gate": "gate", "GateResult": "gate_result"}
_HOMES |= {"Timing": "timing_plan"}


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that ``import lossguard`` costs next to nothing."""
    if name not in __all__:
        raise AttributeError(f"module 'lossguard' has no attribute {name!r}")
    if name == "systems":
        return import_module("lossguard.systems")
    return getattr(import_module(f"lossguard.{_HOMES.get(name, 'records')}"), name)
