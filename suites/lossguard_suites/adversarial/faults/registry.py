"""The list of faults. Importing it imports no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lossguard.errors import UsageError, near_miss

PACKAGE = "lossguard_suites.adversarial.faults"


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planted fault.

    ``seen_by`` are the checks that must not pass it, ``missed_by`` those that cannot see it by construction.
    """

    number: int
    name: str
    title: str
    source: str  # where the fault was met
    strength: str  # how strong it is as planted, for people
    seen_by: tuple[str, ...]
    missed_by: tuple[str, ...]
    target: str  # "module:function"
    option: str = "logits_processors"  # or "post_processors": the option of the transformers engine that takes it
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def options(self, **arguments: Any) -> dict[str, Any]:
        """Engine options that plant this fault; ``arguments`` replace the fault's own."""
        return {self.option: [{"factory": self.target, **self.arguments, **arguments}]}


FAULTS = (
    Fault(
        number=1,
        name="bias-every-seventh",
        title="a bias on every seventh id after some tokens",
        source="made for this suite; stands for a wrong logit offset that starts with the length of the context",
        strength="+2 on every id divisible by 7, from reply position 12 on",
        seen_by=("rate", "event", "buckets"),
        missed_by=("structure",),
        target=f"{PACKAGE}.logit_bias:bias_every_seventh",
    ),
    Fault(
        number=2,
        name="wrong-token",
        title="one wrong token in a few replies",
        source="https://github.com/Avarok-Cybersecurity/atlas/issues/435",
        strength="one token of rank 50 or below and at least 4 nats under the best, in one reply of 20",
        seen_by=("event",),
        missed_by=("rate", "near-tie", "structure"),
        target=f"{PACKAGE}.wrong_token:wrong_token",
    ),
    Fault(
        number=3,
        name="early-stop",
        title="replies that stop early, at the end of a sentence",
        source="https://github.com/vllm-project/vllm/issues/30204",
        strength="the stop id after the first sentence that ends at reply position 16 or later",
        seen_by=("event",),
        missed_by=("structure",),
        target=f"{PACKAGE}.early_stop:early_stop",
    ),
    Fault(
        number=4,
        name="swap-near-ties",
        title="the lower-ranked token of every near-tie",
        source="made for this suite; stands for a tie rule or a rounding that favours the draft",
        strength="every top-2 gap of at most one bfloat16 step",
        seen_by=("near-tie",),
        missed_by=("rate", "event", "structure"),
        target=f"{PACKAGE}.near_ties:swap_near_ties",
    ),
    Fault(
        number=5,
        name="cut-replies",
        title="replies that lack their tail but are reported as full length",
        source="https://github.com/osaurus-ai/vmlx-swift/pull/148",
        strength="the last 4 tokens of every reply",
        seen_by=("structure",),
        missed_by=("rate", "event", "near-tie"),
        target=f"{PACKAGE}.cut_replies:cut_replies",
        option="post_processors",
    ),
)


def fault(name: str) -> Fault:
    """The fault of that name. Raises UsageError LG0216 with the near miss if there is none."""
    known = {item.name: item for item in FAULTS}
    if name not in known:
        raise UsageError(
            f"no fault is called {name!r}. {near_miss(name, known)}",
            why="an instrument is proved with the fault that was meant",
            fix="name one of the known faults",
            code="LG0216",
        )
    return known[name]
