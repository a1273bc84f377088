"""The live checks of the timing instrument, with changes large enough for any machine."""

from __future__ import annotations

from pathlib import Path

import pytest

from lossguard.devices.names import available_cores
from lossguard.engines.base import EngineSpec
from lossguard.errors import UsageError
from lossguard.listener import SilentListener
from lossguard.records import Verdict
from lossguard.selftest.base import SelftestOptions
from lossguard.selftest.clockwork_engine import create
from lossguard.selftest.timing_live import LiveOptions, LiveResult, run, time_planted_changes

pytestmark = pytest.mark.skipif(len(available_cores()) < 2, reason="two devices need two cores")


def options(folder: Path, **changes: object) -> LiveOptions:
    values: dict[str, object] = {
        "folder": folder,
        "devices": ("cpu:0", "cpu:1"),
        "max_foreign_load": 1.0,
        "max_stolen": 1.0,
        **changes,
    }
    return LiveOptions(**values)  # type: ignore[arg-type]


def test_two_pairs_prove_nothing_and_say_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What CI can afford: the whole path, and no verdict from too few pairs."""
    monkeypatch.setenv("LOSSGUARD_LEASES", str(tmp_path / "leases"))
    found = time_planted_changes(
        options(tmp_path, pairs=1, noise_pairs=1, requests=3, tokens=4, token_seconds=0.001), SilentListener()
    )
    assert found.verdict is Verdict.INCONCLUSIVE
    assert [case.name for case in found.cases] == ["same", "slower", "faster"]
    assert [case.is_met for case in found.cases] == [True, False, False]
    assert len(found.problems) == 2


def test_every_call_measures_anew_unless_it_resumes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = []

    def note(given: LiveOptions, _listener: object) -> LiveResult:
        asked.append(given.folder)
        return LiveResult(verdict=Verdict.PASS, summary="", cases=(), evidence={}, problems=())

    monkeypatch.setattr("lossguard.selftest.timing_live.time_planted_changes", note)
    for resume in (None, None, tmp_path / "earlier"):
        run(SelftestOptions(folder=tmp_path, resume=resume), SilentListener())
    assert len(set(asked)) == 3
    assert asked[2] == tmp_path / "earlier"


def test_another_question_is_not_answered_from_the_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LOSSGUARD_LEASES", str(tmp_path / "leases"))
    small = {"pairs": 1, "noise_pairs": 1, "requests": 3, "tokens": 4, "token_seconds": 0.001}
    time_planted_changes(options(tmp_path / "a", **small), SilentListener())
    with pytest.raises(UsageError, match="LG1012"):
        time_planted_changes(options(tmp_path / "a", **{**small, "change": 0.5}), SilentListener())
    (tmp_path / "a" / "key.json").unlink()
    with pytest.raises(UsageError, match="LG1012"):
        time_planted_changes(options(tmp_path / "a", **small), SilentListener())


@pytest.mark.slow
def test_planted_changes_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Twice as slow and twice as fast: found even beside other work."""
    monkeypatch.setenv("LOSSGUARD_LEASES", str(tmp_path / "leases"))
    found = time_planted_changes(options(tmp_path, change=1.0, requests=8, tokens=10), SilentListener())
    same, slower, faster = found.cases
    assert not same.verdict.is_pass
    assert found.verdict is not Verdict.FAIL, found.problems
    assert slower.check.evidence["estimate"]["gain"] < -0.3
    assert faster.check.evidence["estimate"]["gain"] > 0.5


@pytest.mark.parametrize("given", [{}, {"token_seconds": 0}, {"token_seconds": "1"}, {"other": 1}])
def test_the_clockwork_engine_refuses_other_options(given: dict[str, object]) -> None:
    with pytest.raises(UsageError, match="LG0204"):
        create(EngineSpec(name="x", model_path="", options=given))
