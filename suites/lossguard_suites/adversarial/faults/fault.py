"""What a planted fault is. Standard library only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from lossguard.diagnosis.families import Family

PACKAGE = "lossguard_suites.adversarial.faults"


@dataclass(frozen=True, slots=True, kw_only=True)
class Strength:
    """The one number by which a fault is made weaker; the factories take it as the argument ``parameter``."""

    parameter: str
    published: float  # as strong as it was met
    meaning: str
    weaker: tuple[float, ...] = ()  # for power curves, strongest first
    off: float = 0.0  # planted with no effect: a negative control


@dataclass(frozen=True, slots=True, kw_only=True)
class Plant:
    """One function that the engine is given, under one of its options."""

    option: str  # logits_processors, state_edits, draft_edits or post_processors
    target: str  # "module:function"
    arguments: Mapping[str, Any] = field(default_factory=dict)
    is_drawn: bool = True  # takes a seed that redraws where it strikes


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One planted fault, or a change that looks like one and must not be seen (``is_control``).

    ``seen_by`` are the checks of which at least one must FAIL, ``missed_by`` those that cannot see it by
    construction. ``pending_check`` names the check that must see it and does not exist yet. ``code`` is the fault's
    number in docs/faults.md: F from the list of faults met elsewhere, with a letter for variants; O our own faults,
    N our own controls.
    """

    code: str
    name: str
    title: str
    sources: tuple[str, ...]  # where it was met; empty: made for this suite
    family: Family
    strength: Strength | None = None  # None: it is there or it is not
    plants: tuple[Plant, ...] = ()
    engine_options: Mapping[str, Any] = field(default_factory=dict)  # "{model}" stands for the target's folder
    expect: Mapping[str, Any] = field(default_factory=dict)  # for the vacuity check
    asks: Mapping[str, Any] = field(
        default_factory=dict
    )  # what requests must ask for ([parameters] of a configuration)
    temperature: float = 0.0  # of the requests that show it; 0: greedy
    seen_by: tuple[str, ...] = ()
    missed_by: tuple[str, ...] = ()
    pending_check: str | None = None
    is_control: bool = False
    is_inside: bool = True  # acts inside generation, not on what is reported about it
    note: str = ""

    def options(self, **arguments: Any) -> dict[str, Any]:
        """Engine options that plant this fault.

        ``arguments`` replace the first plant's own; ``seed`` goes to all plants that draw anything, which must draw
        the same places. Raises TypeError if there is nothing that could take them.
        """
        seed = {"seed": arguments.pop("seed")} if "seed" in arguments else {}
        if arguments and not self.plants:
            raise TypeError(f"{self.name} is a set of engine options and takes no arguments: {sorted(arguments)}")
        found: dict[str, Any] = dict(self.engine_options)
        for number, plant in enumerate(self.plants):
            given = {**plant.arguments, **(arguments if number == 0 else {}), **(seed if plant.is_drawn else {})}
            found.setdefault(plant.option, []).append({"factory": plant.target, **given})
        return found

    def at_strength(self, value: float, **arguments: Any) -> dict[str, Any]:
        """Engine options that plant this fault at another strength. Raises TypeError if it has none."""
        if self.strength is None:
            raise TypeError(f"{self.name} has no strength")
        counts = isinstance(self.strength.published, int)
        return self.options(**{self.strength.parameter: int(value) if counts else value, **arguments})

    @property
    def is_pending(self) -> bool:
        """Whether the check that must see it does not exist yet."""
        return self.pending_check is not None


def issue(repository: str, number: int) -> str:
    """Address of an issue on GitHub."""
    return f"https://github.com/{repository}/issues/{number}"


def pull(repository: str, number: int) -> str:
    """Address of a pull request on GitHub."""
    return f"https://github.com/{repository}/pull/{number}"
