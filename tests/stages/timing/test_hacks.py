"""Ways to look faster than one is, each with the verdict that it must get (the catalogue's rows on time)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from lossguard.devices.names import available_cores
from lossguard.errors import IntegrityError
from lossguard.records import Verdict
from lossguard.stages.timing.pair_times import to_pair_times
from lossguard.timing.base import NoiseProfile
from lossguard.timing.control_chart import control_chart
from lossguard.timing_plan import Timing
from tests.stages.timing.campaigns import NOISE, ToyCampaign, judged

pytestmark = pytest.mark.skipif(len(available_cores()) < 2, reason="two devices need two cores")


def test_a_real_gain_is_promoted(tmp_path: Path) -> None:
    """The control: the gate is no wall."""
    found = ToyCampaign(tmp_path / "c", stock={"token_seconds": 0.006}, candidate={"token_seconds": 0.002}).judged()
    assert found.check.verdict is Verdict.PASS, found.check.notes
    assert found.gain_lower_bound is not None
    assert found.gain_lower_bound > 0.3


def test_slow_warm_up_changes_nothing(tmp_path: Path) -> None:
    """A slow start makes an adaptive loop take few samples; here the number is fixed before the launch."""
    campaign = ToyCampaign(tmp_path / "c", candidate={"slow_warm_up": 5.0}, relaunch="process")
    measured = campaign.run()
    assert [pair.seconds.shape for pair in measured.pairs] == [(2, 2, 6)] * 4
    assert judged(campaign, measured, Timing(), NOISE).check.verdict is not Verdict.PASS


@pytest.mark.parametrize("relaunch", ["process", "reset"])
def test_a_cache_across_repeats_never_hits(tmp_path: Path, relaunch: str) -> None:
    """Nonces make every prompt new, even to a cache that outlives its process."""
    cached = {"cache": True, "seen": str(tmp_path / "seen")}
    campaign = ToyCampaign(tmp_path / "c", candidate=cached, pairs=4, relaunch=relaunch)
    assert campaign.judged().check.verdict is not Verdict.PASS


def test_the_same_cache_would_win_without_nonces(tmp_path: Path) -> None:
    """Shows that the test above can fail."""
    slow = {"token_seconds": 0.01}
    cached = {**slow, "cache": True, "seen": str(tmp_path / "seen")}
    campaign = ToyCampaign(tmp_path / "c", stock=slow, candidate=cached, pairs=2, nonce_tokens=0)
    measured = campaign.run()
    gains = np.log(measured.pairs[-1].seconds[:, 0] / measured.pairs[-1].seconds[:, 1])
    assert np.median(gains) > 0.5


def test_fewer_tokens_are_judged_by_the_token_with_the_stricter_rule(tmp_path: Path) -> None:
    campaign = ToyCampaign(tmp_path / "c", candidate={"short": 3}, fixed_length=False)
    found = campaign.judged()
    assert found.check.verdict is not Verdict.PASS
    assert found.check.evidence["estimate"]["per_token"] is True
    assert found.check.evidence["rule_evidence"]["floor"] == 0.03
    assert found.check.evidence["num_diverging"] == 4 * 2 * 6


@pytest.mark.parametrize(
    ("short", "fixed_length", "words"), [(-3, False, "9 tokens where 6 are the most"), (3, True, "least")]
)
def test_another_length_than_asked_is_an_error(tmp_path: Path, short: int, words: str, *, fixed_length: bool) -> None:
    """Tokens that nobody asked for would count as speed, and so would tokens that were left out."""
    campaign = ToyCampaign(tmp_path / "c", candidate={"short": short}, fixed_length=fixed_length)
    measured = campaign.run()
    assert measured.pairs == ()
    assert "LG1004" in measured.problems[0]
    assert words in measured.problems[0]


def test_work_behind_a_reply_is_on_the_clock(tmp_path: Path) -> None:
    """A candidate that yields early and works on while the client waits for stock gains nothing."""
    stock = {"token_seconds": 0.02}
    campaign = ToyCampaign(tmp_path / "c", pairs=1, stock=stock, candidate={"work_behind": 0.04})
    measured = campaign.run()
    assert float(np.median(measured.pairs[0].seconds[:, 1])) > 0.04


def test_time_to_first_token_is_not_shared_out_over_a_reply(tmp_path: Path) -> None:
    """Divided by 3 tokens where stock has 6, it would seem twice as long; by more, as short as one likes."""
    campaign = ToyCampaign(tmp_path / "c", candidate={"short": 3}, fixed_length=False, metric="ttft")
    found = campaign.judged(Timing(pairs=4, metric="ttft"))
    assert abs(float(np.median(np.log1p(found.check.evidence["pair_gains"])))) < 0.4  # divided: -0.69


def test_an_edited_run_is_found(tmp_path: Path) -> None:
    """A run that is sealed is read again only as it was written."""
    campaign = ToyCampaign(tmp_path / "c", pairs=1)
    assert campaign.run().problems == ()
    path = tmp_path / "c" / "runs" / "pair-000-run-0.jsonl"
    path.write_text(path.read_text().replace('"num_tokens": 6', '"num_tokens": 5', 1))
    with pytest.raises(IntegrityError, match="LG0617"):
        campaign.run()


def test_other_tokens_of_the_same_number_need_three_percent(tmp_path: Path) -> None:
    found = ToyCampaign(tmp_path / "c", candidate={"other_tokens": True}).judged()
    assert found.check.evidence["rule_evidence"]["floor"] == 0.03


def test_errors_are_never_fast(tmp_path: Path) -> None:
    """A reply that fails at once ends the campaign: INCONCLUSIVE, and what came before is kept."""
    campaign = ToyCampaign(tmp_path / "c", candidate={"fail_every": 20, "token_seconds": 0.0001})
    found = campaign.judged()
    assert found.check.verdict is Verdict.INCONCLUSIVE
    assert "LG1004" in found.check.notes[0]
    assert "LG0608" in found.check.notes[0]
    assert campaign.run_files


def test_a_tail_traded_for_the_mean_is_not_promoted(tmp_path: Path) -> None:
    """Four in five twice as fast, every fifth much slower: the mean wins, the guards do not allow it."""
    candidate = {"token_seconds": 0.001, "tail_factor": 6.0}
    campaign = ToyCampaign(tmp_path / "c", stock={"token_seconds": 0.003}, candidate=candidate, num_requests=10)
    found = campaign.judged()
    assert found.gain is not None
    assert found.gain > 0.1
    assert found.check.verdict is not Verdict.PASS


def test_sabotaged_stock_leaves_its_control_chart(tmp_path: Path) -> None:
    """A stock that is slower than in its profile makes the run INCONCLUSIVE, whatever the gain."""
    campaign = ToyCampaign(tmp_path / "c", stock={"token_seconds": 0.02})
    measured = campaign.run()
    honest = NoiseProfile(pair_means=NOISE.pair_means, stock_levels=tuple(np.log(0.015) + 0.01 * np.arange(8)))
    times = to_pair_times(measured.pairs, ["toy"] * 6, 2, metric="latency")
    assert control_chart(times, honest).is_off


def test_a_patched_clock_in_the_arm_is_not_asked(tmp_path: Path) -> None:
    """The arm's telling is outside of what the client saw: no metric rests on it, and latency never did."""
    campaign = ToyCampaign(tmp_path / "c", pairs=1, candidate={"patch_clock": True}, metric="ttft")
    measured = campaign.run()
    assert measured.pairs == ()
    assert "outside of what the client saw" in measured.problems[0]
    by_latency = ToyCampaign(tmp_path / "d", pairs=1, candidate={"patch_clock": True}).run()
    assert by_latency.problems == ()
    assert float(np.median(by_latency.pairs[0].seconds[:, 1])) > 0.012
