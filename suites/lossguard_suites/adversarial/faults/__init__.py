"""Faults planted inside generation: what they do, where they come from, and which check must see them.

Logits processors act while a reply is generated, so that every later token follows from the faulty prefix. They
are functions of the context and of what has been generated, without state of their own: a seed redraws which
replies and which positions are hit. Post processors act on what is reported about a finished reply.
"""

from lossguard_suites.adversarial.faults.registry import FAULTS, Fault, fault

__all__ = ["FAULTS", "Fault", "fault"]
