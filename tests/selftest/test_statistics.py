from __future__ import annotations

import hashlib
import tomllib
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from lossguard.errors import IntegrityError
from lossguard.selftest.statistics import (
    StockStatistics,
    load_statistics,
    reply_lengths,
    save_statistics,
    statistics_folder,
)

MAXIMUM = 64


def test_what_is_saved_comes_back(statistics: StockStatistics, tmp_path: Path) -> None:
    save_statistics(tmp_path, statistics)
    again = load_statistics("round", tmp_path)
    assert again.head() == statistics.head()
    assert np.array_equal(again.tie_is_lower, statistics.tie_is_lower)
    assert np.array_equal(again.mismatch_gap, statistics.mismatch_gap)


@pytest.mark.parametrize("damage", ["absent", "no json", "another column"])
def test_damaged_statistics_are_refused(statistics: StockStatistics, tmp_path: Path, damage: str) -> None:
    paths = save_statistics(tmp_path, statistics)
    if damage == "absent":
        paths[1].unlink()
    elif damage == "no json":
        paths[0].write_text("{")
    else:
        paths[0].write_text(paths[0].read_text().replace('"tie_rho"', '"tie_rhp"'))
    with pytest.raises(IntegrityError, match="LG0903"):
        load_statistics("round", tmp_path)


def test_the_recorded_stock_is_the_one_in_the_manifest() -> None:
    folder = statistics_folder()
    manifest = tomllib.loads((folder / "MANIFEST.toml").read_text(encoding="utf-8"))
    assert {entry["name"] for entry in manifest["file"]} == {
        path.name for path in folder.iterdir() if path.name != "MANIFEST.toml"
    }
    for entry in manifest["file"]:
        assert hashlib.sha256((folder / entry["name"]).read_bytes()).hexdigest() == entry["sha256"]


def test_the_recorded_stock_is_plausible() -> None:
    stock = load_statistics()
    assert 0.0005 < stock.rate < 0.02
    assert 0 <= stock.rho < 0.05
    assert (stock.mismatch_gap > stock.mismatch_delta).all()
    assert (stock.tie_gap <= stock.tie_delta).all()
    assert stock.num_tokens > 100_000


def test_shorter_replies_are_cut(statistics: StockStatistics) -> None:
    assert np.array_equal(reply_lengths(statistics, 30), np.minimum(statistics.reply_length, 30))


def test_cut_replies_go_on_at_their_sets_rate(statistics: StockStatistics) -> None:
    rng = np.random.default_rng(0)
    true = np.ceil(rng.exponential(100.0, size=120)).astype(np.int32)
    cut = replace(statistics, reply_length=np.minimum(true, MAXIMUM))
    longer = reply_lengths(cut, 400)
    assert np.array_equal(longer[true < MAXIMUM], true[true < MAXIMUM])
    assert (longer[true >= MAXIMUM] >= MAXIMUM).all()
    assert longer.mean() == pytest.approx(np.minimum(true, 400).mean(), rel=0.2)
