"""The committed recordings: they belong to the committed models, and say of policies what must be so."""

from __future__ import annotations

import tomllib
from dataclasses import replace
from pathlib import Path

import pytest

from lossguard.errors import UsageError
from lossguard.listener import SilentListener
from lossguard.models import sha256_of_file
from lossguard.records import Verdict
from lossguard_mechanisms.replay.comparison import ALL, compare
from lossguard_mechanisms.replay.engine_check import ServingOrder, check_against_engine
from lossguard_mechanisms.replay.recording import Recording
from lossguard_mechanisms.replay.sources import weights_sha256
from lossguard_mechanisms.replay.store import SUFFIX, load_recording

FIXTURES = Path(__file__).resolve().parents[3] / "fixtures"
NAMES = ("dflash2", "dspark", "eagle3")


def load(name: str) -> Recording:
    """A committed recording."""
    return load_recording(FIXTURES / "lattices" / f"{name}{SUFFIX}")


def test_the_manifest_names_every_recording_and_its_hash() -> None:
    folder = FIXTURES / "lattices"
    listed = tomllib.loads((folder / "MANIFEST.toml").read_text(encoding="utf-8"))["file"]
    assert {entry["name"]: entry["sha256"] for entry in listed} == {
        path.name: sha256_of_file(path) for path in folder.glob(f"*{SUFFIX}")
    }
    assert {entry["name"] for entry in listed} == {f"{name}{SUFFIX}" for name in NAMES}


@pytest.mark.parametrize("name", NAMES)
def test_recordings_are_those_of_the_committed_models(name: str) -> None:
    origin = load(name).provenance
    assert origin.drafter == name
    assert origin.target_sha256 == weights_sha256(FIXTURES / "hybrid-target")
    assert origin.drafter_sha256 == weights_sha256(FIXTURES / f"hybrid-{name}")


@pytest.mark.parametrize("name", NAMES)
def test_policies_come_in_the_order_in_which_they_must(name: str) -> None:
    found = compare(name, load(name), [], [8, 64])
    tau = {(result.policy.name, result.policy.num_nodes): result.tau[ALL].value or 0.0 for result in found.results}
    assert 2.0 < tau["chain", 7] < tau["best-first", 64] < tau["oracle", None] <= 8.0
    assert tau["best-first", 8] < tau["best-first", 64]
    assert tau["static", 64] < tau["best-first", 64]
    assert tau["eagle-2", 8] <= 1.01 * tau["best-first", 8]


def test_edges_are_worth_more_than_marginals() -> None:
    """DFlash2's selector knows which neighbours go together."""
    found = compare("dflash2", load("dflash2"), ["ddtree", "best-first"], [16])
    marginals, edges = (result.tau[ALL].value for result in found.results)
    assert marginals is not None
    assert edges is not None
    assert edges > 1.05 * marginals


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_the_engine_takes_the_recorded_steps(name: str) -> None:
    order = ServingOrder(
        target=FIXTURES / "hybrid-target", drafter=FIXTURES / f"hybrid-{name}", slots=8, device="cpu", dtype="float32"
    )
    check = check_against_engine(load(name), order, SilentListener())
    assert check.verdict is Verdict.PASS
    assert check.num_equal_steps == check.num_equal_replies >= 22


@pytest.mark.slow
@pytest.mark.parametrize(("name", "policy"), [("dflash2", "best-first"), ("eagle3", "eagle-2")])
def test_the_engines_trees_take_the_replayed_steps(name: str, policy: str) -> None:
    order = ServingOrder(
        target=FIXTURES / "hybrid-target", drafter=FIXTURES / f"hybrid-{name}", slots=8, device="cpu", dtype="float32",
        policy=policy, num_nodes=16,
    )  # fmt: skip
    check = check_against_engine(load(name), order, SilentListener())
    assert check.verdict is Verdict.PASS
    assert check.num_equal_steps == check.num_equal_replies >= 22


def test_a_recording_that_keeps_less_cannot_be_compared_with_trees() -> None:
    whole = load("dflash2")
    lattices = whole.lattices
    assert lattices.edges is not None
    assert lattices.anchor_edges is not None
    fewer = replace(lattices, anchor_edges=lattices.anchor_edges[:, :8], edges=lattices.edges[:, :, :8, :8])
    order = ServingOrder(
        target=FIXTURES / "hybrid-target", drafter=FIXTURES / "hybrid-dflash2", slots=8, device="cpu", dtype="float32",
        policy="best-first",
    )  # fmt: skip
    with pytest.raises(UsageError, match="LG1616"):
        check_against_engine(replace(whole, lattices=fewer), order, SilentListener())
    with pytest.raises(UsageError, match="LG1607"):
        check_against_engine(whole, replace(order, policy="beam"), SilentListener())


def test_best_first_is_no_worse_than_the_published_trees() -> None:
    """The bars: EAGLE-2's tokens per step at 16 nodes, more than DDTree's at every number of nodes."""
    found = compare("dflash2", load("dflash2"), ["ddtree", "best-first", "eagle-2"], [8, 16, 32, 64])
    tau = {(result.policy.name, result.policy.num_nodes): result.tau[ALL].value or 0.0 for result in found.results}
    assert tau["best-first", 16] >= tau["eagle-2", 16]
    for num_nodes in (8, 16, 32, 64):
        assert tau["best-first", num_nodes] > tau["ddtree", num_nodes]
