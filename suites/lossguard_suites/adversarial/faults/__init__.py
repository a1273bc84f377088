"""Faults planted inside generation: what they do, where they come from, and which check must see them.

Logits processors and state edits act while a reply is generated, so that every later token follows from the faulty
prefix. Where they strike is a function of a seed and the request: a seed redraws which replies and which positions are
hit. Post processors act on what is reported about a finished reply.
"""

from lossguard_suites.adversarial.faults.controls import CONTROLS
from lossguard_suites.adversarial.faults.fault import Fault, Plant, Strength
from lossguard_suites.adversarial.faults.registry import FAULTS, PENDING, PLANTED, fault

__all__ = ["CONTROLS", "FAULTS", "PENDING", "PLANTED", "Fault", "Plant", "Strength", "fault"]
