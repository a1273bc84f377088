from __future__ import annotations

import tomllib
from importlib.metadata import EntryPoint
from pathlib import Path

import pytest

from lossguard.errors import UsageError
from lossguard.listener import Listener, SilentListener
from lossguard.records import Verdict
from lossguard.selftest import registry
from lossguard.selftest.base import SelftestOptions, SelftestPart
from lossguard.selftest.registry import Kind, load_part, part_names, run_parts

ROOT = Path(__file__).resolve().parents[2]
ALL = tuple(Kind)


def run_made_up(options: SelftestOptions, _listener: Listener) -> SelftestPart:
    return SelftestPart(name="speech-live", verdict=Verdict.PASS, summary=f"seed {options.seed}")


@pytest.fixture
def installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another package offers two parts, one of which takes a built-in name."""
    points = [
        EntryPoint("speech-live", f"{__name__}:run_made_up", registry.ENTRY_POINT_GROUP),
        EntryPoint("losslessness-simulate", f"{__name__}:run_made_up", registry.ENTRY_POINT_GROUP),
        EntryPoint("speech-simulate", f"{__name__}:absent", registry.ENTRY_POINT_GROUP),
    ]
    monkeypatch.setattr(registry, "entry_points", lambda group: points)


@pytest.mark.usefixtures("installed")
def test_parts_are_chosen_by_subject_and_kind() -> None:
    assert part_names(None, ALL) == (
        "losslessness-live",
        "losslessness-simulate",
        "speech-live",
        "speech-simulate",
        "timing-live",
        "timing-simulate",
    )
    assert part_names("speech", ALL) == ("speech-live", "speech-simulate")
    assert part_names("speech", (Kind.LIVE,)) == ("speech-live",)


@pytest.mark.usefixtures("installed")
def test_a_part_runs_with_the_options() -> None:
    result = run_parts(("speech-live",), SelftestOptions(seed=5), SilentListener())
    assert result.parts[0].summary == "seed 5"


@pytest.mark.usefixtures("installed")
def test_a_package_does_not_replace_a_built_in_part() -> None:
    from lossguard.selftest.losslessness import run

    assert load_part("losslessness-simulate") is run


@pytest.mark.usefixtures("installed")
def test_nothing_to_run_is_an_error() -> None:
    with pytest.raises(UsageError, match="LG0901"):
        part_names("speed", ALL)
    with pytest.raises(UsageError, match="LG0901"):
        part_names("losslessness", (Kind.LIVE,))
    with pytest.raises(UsageError, match="LG0902"):
        load_part("speech-simulate")


def test_built_in_parts_are_declared() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = project["entry-points"][registry.ENTRY_POINT_GROUP]
    assert {name: target for name, target in declared.items() if target.startswith("lossguard.")} == registry.BUILT_IN


@pytest.mark.usefixtures("installed")
def test_a_part_that_is_not_installed_is_named_and_inconclusive() -> None:
    names = part_names("losslessness", ALL)
    assert names == ("losslessness-live", "losslessness-simulate")
    result = run_parts(names[:1], SelftestOptions(), SilentListener())
    assert result.verdict is Verdict.INCONCLUSIVE
    assert result.parts[0].name == "losslessness-live"
    assert "not installed" in result.parts[0].summary


@pytest.mark.usefixtures("installed")
def test_a_part_that_was_not_asked_for_is_not_missing() -> None:
    assert part_names("losslessness", (Kind.SIMULATE,)) == ("losslessness-simulate",)


def test_every_expected_part_is_declared() -> None:
    declared: set[str] = set()
    for path in (ROOT / "pyproject.toml", *ROOT.glob("suites*/pyproject.toml")):
        points = tomllib.loads(path.read_text(encoding="utf-8"))["project"].get("entry-points", {})
        declared |= points.get(registry.ENTRY_POINT_GROUP, {}).keys()
    assert set(registry.EXPECTED) == declared
