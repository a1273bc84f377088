"""The benchmark runs on a tiny shape without files or lm-eval, and counts tokens rightly."""

from __future__ import annotations

import sys

import pytest

from benchmarks import scoring as benchmark
from benchmarks.scoring_work import Work


def test_tiny_shape_prints_every_figure(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["--shape", "tiny", "--tokens", "640", "--rounds", "1", "--threads", "1"]
    monkeypatch.setattr(sys, "argv", ["scoring", *arguments])
    benchmark.main()
    printed = capsys.readouterr().out
    assert "2 requests x 2 arms, 636 tokens, 412 unique" in printed
    assert "share of the headless forward's speed" in printed
    assert "lm_eval" not in sys.modules


def test_unique_tokens_count_a_shared_prefix_once() -> None:
    work = Work(prompts=[[1, 2]], replies=[[[3, 4, 5]], [[3, 6, 7]]])
    assert work.num_tokens() == 8
    assert work.num_unique_tokens() == 5
