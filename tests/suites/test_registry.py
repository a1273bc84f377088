"""The list of faults: complete, consistent with its functions, and half of what proves an instrument is controls."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from importlib import import_module
from typing import Any

import pytest

from lossguard.checks.registry import builtin_checks
from lossguard.diagnosis.families import Family
from lossguard.engines.extensions import Extension
from lossguard.errors import UsageError
from lossguard_suites.adversarial.faults import CONTROLS, FAULTS, PENDING, PLANTED, Fault, Plant, Strength, fault

LISTED = (1, 2, 3, 5, 6, 8, 9, 10, 12, 13, 15, 17, 18, 20, 21, 22, 23, 24, 25, 26, 27, 29, 30, 32, 33, 35, 36, 37, 39,
          40, 41, 42, 44, 45, 46, 47, 49, 51, 52, 53, 54, 56, 58, 59, 60, 62, 64, 65, 66, 67, 68)  # fmt: skip
"""The faults met elsewhere; the numbers in between were left out of the list."""
GREEN = (12, 25, 26, 45, 59, 60, 62)

BY_NAME = pytest.mark.parametrize("planted", FAULTS, ids=lambda item: item.name)


def check_names() -> set[str]:
    return {check.name for check in builtin_checks()}


def numbers(faults: tuple[Fault, ...]) -> set[int]:
    return {int(found[1]) for item in faults if (found := re.fullmatch(r"F(\d+)[a-z]?", item.code))}


def test_every_listed_fault_is_there_and_the_harmless_ones_are_controls() -> None:
    assert len(LISTED) == 51
    assert numbers(FAULTS) == set(LISTED)
    assert numbers(CONTROLS) == set(GREEN)
    assert [len(group) for group in (PLANTED, PENDING, CONTROLS)] == [56, 1, 44]
    assert sorted((*PLANTED, *PENDING, *CONTROLS), key=lambda item: item.code) == sorted(
        FAULTS, key=lambda item: item.code
    )


def test_codes_and_names_are_unique() -> None:
    assert len({item.code for item in FAULTS}) == len(FAULTS)
    assert len({item.name for item in FAULTS}) == len(FAULTS)


@BY_NAME
def test_an_entry_is_sound(planted: Fault) -> None:
    assert all(re.fullmatch(r"https://github\.com/[\w.-]+/[\w.-]+/(issues|pull)/\d+", url) for url in planted.sources)
    assert planted.sources or planted.code[0] in "ON" or planted.code in {"F65", "F65b", "F65c", "F66", "F67", "F68"}
    assert not set(planted.seen_by) & set(planted.missed_by)
    assert {*planted.seen_by, *planted.missed_by} <= check_names()
    assert bool(planted.seen_by) is not (planted.is_control or planted.is_pending)
    assert planted.plants or planted.engine_options
    assert isinstance(planted.family, Family)
    if planted.strength is not None:
        strengths = [planted.strength.published, *planted.strength.weaker]
        assert planted.strength.off not in strengths


@BY_NAME
def test_functions_take_what_the_entry_gives_them(planted: Fault) -> None:
    for number, plant in enumerate(planted.plants):
        parameters = inspect.signature(Extension(target=plant.target).load()).parameters
        assert set(plant.arguments) <= set(parameters)
        assert plant.is_drawn is ("seed" in parameters)
        if number == 0 and planted.strength is not None:
            default = parameters[planted.strength.parameter].default
            published = plant.arguments.get(planted.strength.parameter, default)
            assert published == planted.strength.published
            assert isinstance(published, type(planted.strength.published))


def test_arguments_go_to_the_first_plant_and_the_seed_to_all() -> None:
    options = fault("kept-drafts").options(probability=0.5, seed=7)
    assert options["state_edits"][0]["probability"] == 0.5
    assert options["state_edits"][0]["seed"] == options["post_processors"][0]["seed"] == 7
    assert "probability" not in options["post_processors"][0]
    assert "seed" not in fault("recomputed-entries").options(seed=7)["state_edits"][0]
    with pytest.raises(TypeError, match="no arguments"):
        fault("int4-weights").options(share=0.5)


def test_a_count_stays_a_whole_number() -> None:
    (plant,) = fault("kept-tail").at_strength(4.0)["state_edits"]
    assert plant["tokens"] == 4
    assert isinstance(plant["tokens"], int)
    with pytest.raises(TypeError, match="no strength"):
        fault("int4-weights").at_strength(0.5)


def test_an_unknown_fault_names_the_near_miss() -> None:
    assert fault("wrong-token").code == "F64"
    with pytest.raises(UsageError, match="Did you mean 'wrong-token'"):
        fault("wrong-tokens")


def test_importing_the_list_imports_no_torch() -> None:
    code = "import sys; import lossguard_suites.adversarial.faults; sys.exit('torch' in sys.modules)"
    path = ":".join(sys.path)
    assert subprocess.run([sys.executable, "-c", code], env={"PYTHONPATH": path}, check=False).returncode == 0


def waiting(item: Fault) -> Any:
    reason = f"the check {item.pending_check!r} does not exist yet"
    return pytest.param(item, id=item.name, marks=pytest.mark.xfail(strict=True, reason=reason))


@pytest.mark.parametrize("planted", [waiting(item) for item in PENDING])
def test_a_pending_fault_has_its_check(planted: Fault) -> None:
    """Turns red when the check comes: then the fault's ``pending_check`` becomes its ``seen_by``."""
    assert planted.pending_check in check_names()


@pytest.mark.parametrize("name", ["hybrid", "smollm2"])
def test_the_demo_plants_faults_of_the_list(name: str) -> None:
    from lossguard.demo_targets import demo_target

    targets = {plant.target for item in FAULTS for plant in item.plants}
    named = [
        table["factory"]
        for system in demo_target(name).config(1).systems.values()
        for key in ("logits_processors", "post_processors")
        for table in system.options.get(key, ())
    ]
    assert len(named) == 5
    assert set(named) <= targets
    for target in named:
        module, _, attribute = target.partition(":")
        assert callable(getattr(import_module(module), attribute))


def test_options_are_a_table_per_plant() -> None:
    strength = Strength(parameter="share", published=1.0, meaning="m")
    plant = Plant(option="state_edits", target="a:b")
    one = Fault(code="X1", name="x", title="t", sources=(), family=Family.UNKNOWN, strength=strength, plants=(plant,))
    assert one.options() == {"state_edits": [{"factory": "a:b"}]}
    assert one.at_strength(0.5, seed=1) == {"state_edits": [{"factory": "a:b", "share": 0.5, "seed": 1}]}
