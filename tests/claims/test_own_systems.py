"""This repository's own claims. A faulty system is expected to fail: one that passes turns the run red."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from lossguard.pytest_plugin.fixtures import LossguardFixture

missed_fault_is_red = pytest.mark.xfail(strict=True, raises=pytest.fail.Exception, reason="a planted fault")


@pytest.mark.lossguard(claim="own/prompt-lookup", candidate="prompt-lookup", budget="quick")
def test_prompt_lookup_is_lossless(lossguard: LossguardFixture) -> None:
    lossguard.assert_lossless()


@missed_fault_is_red
@pytest.mark.lossguard(claim="own/biased-ids", candidate="biased-ids", budget="quick")
def test_biased_ids_are_found(lossguard: LossguardFixture) -> None:
    lossguard.assert_lossless()


@missed_fault_is_red
@pytest.mark.lossguard(claim="own/wrong-token", candidate="wrong-token", budget="quick")
def test_rare_wrong_tokens_are_found(lossguard: LossguardFixture) -> None:
    lossguard.assert_lossless()


@missed_fault_is_red
@pytest.mark.lossguard(claim="own/cut-replies", candidate="cut-replies", budget="quick")
def test_cut_replies_are_found(lossguard: LossguardFixture) -> None:
    lossguard.assert_lossless()
