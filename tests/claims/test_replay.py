"""Recorded replies: what was recorded is served, and nothing else."""

from __future__ import annotations

import shutil
import tomllib
from pathlib import Path

import pytest

from tests.claims import replay
from tests.claims.replay import FOLDER, NotRecordedError, manifest, recorded

SYSTEMS = ("stock", "prompt-lookup", "other-batches", "biased-ids", "wrong-token", "cut-replies", "swapped-ties")
KEPT = 32


def prompts(part: str) -> list[list[int]]:
    return recorded()[f"{part}.prompts"]


def test_the_file_holds_what_its_manifest_says() -> None:
    facts = manifest()
    assert tuple(facts["systems"]) == SYSTEMS
    assert (facts["num_requests"], facts["num_calibration"], facts["num_tokens_kept"]) == (240, 80, KEPT)
    for system in SYSTEMS:
        rows = recorded()[f"test.{system}"]
        assert len(rows) == 240
        assert max(map(len, rows)) == (KEPT if system != "cut-replies" else KEPT - 4)
    assert (FOLDER / facts["file"]).stat().st_size < 300_000


def test_replies_are_found_by_prompt_and_cut_if_fewer_tokens_are_asked() -> None:
    asked = prompts("test")[7:3:-1]
    expected = recorded()["test.stock"][7:3:-1]
    assert replay.stock(asked, KEPT) == expected
    assert replay.stock(asked, 5) == [row[:5] for row in expected]


def test_calibration_prompts_in_other_batches_have_replies_of_their_own() -> None:
    asked = prompts("calibration")
    first, again = recorded()["calibration.stock"], recorded()["recomposed.stock"]
    assert first != again, "or the two compositions would show no rounding"
    assert replay.stock(asked[64:], KEPT) == first[64:]
    assert replay.stock(asked[::-1], KEPT) == again[::-1]


@pytest.mark.parametrize(
    ("system", "part", "tokens"),
    [("stock", "test", KEPT + 1), ("cut-replies", "test", KEPT - 1), ("biased-ids", "calibration", KEPT)],
)
def test_what_was_not_recorded_is_an_error(system: str, part: str, tokens: int) -> None:
    with pytest.raises(NotRecordedError):
        replay.Replay(system)(prompts(part)[:2], tokens)


def test_an_unknown_prompt_is_an_error() -> None:
    with pytest.raises(NotRecordedError):
        replay.stock([prompts("test")[0], [1, 2, 3]], KEPT)


def test_decode_is_served_for_recorded_prefixes_only() -> None:
    rows = recorded()["decode.biased-ids.batch-1"]
    index = next(index for index, row in enumerate(rows) if row)
    prompt, reply = prompts("test")[index], recorded()["test.biased-ids"][index]
    assert replay.stock.forced_decode([prompt], [reply]) == [rows[index]]
    assert replay.stock.forced_decode([prompt], [reply[:9]]) == [rows[index][:9]]
    with pytest.raises(NotRecordedError):
        replay.stock.forced_decode([prompt], [[*reply[:8], reply[8] + 1]])
    with pytest.raises(NotRecordedError):
        replay.stock.forced_decode([[1, 2, 3]], [reply])


def test_a_changed_file_is_not_served(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(FOLDER, tmp_path / "outputs")
    file = tmp_path / "outputs" / "replies.safetensors"
    file.write_bytes(file.read_bytes()[:-1] + b"x")
    monkeypatch.setattr(replay, "FOLDER", tmp_path / "outputs")
    recorded.cache_clear()
    try:
        with pytest.raises(ValueError, match="not the file of its manifest"):
            recorded()
    finally:
        recorded.cache_clear()


def test_the_configuration_names_the_live_systems() -> None:
    root = FOLDER.parent.parent
    live = tomllib.loads((root / "tests" / "claims" / "live.toml").read_text(encoding="utf-8"))
    own = tomllib.loads((root / "tests" / "claims" / "lossguard.toml").read_text(encoding="utf-8"))
    assert set(own["systems"]) == set(SYSTEMS) <= set(live["systems"])
    assert (own["model"], own["prompts"]) == (live["model"], live["prompts"])
