"""The whole gate, and the doctor, with a server that scores."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lossguard.cli.main import run as run_cli
from lossguard.config import Config, ScorerConfig, SystemConfig, load_config
from lossguard.errors import UsageError
from lossguard.gate import compare_scorers, comparison_in_words, run_gate
from lossguard.gate_result import GateResult
from lossguard.plan import Budget, Plan
from lossguard.records import Verdict
from lossguard.report.terminal import render_report
from lossguard.scoring.registry import scorer_factory
from tests.engines.servers.loopback import Loopback
from tests.engines.servers.spoken import ToyModel
from tests.gate.conftest import Stack, make_stack
from tests.gate.toy import ToyScorer, ToyTarget, wrong_token
from tests.scoring.servers.scoring_loopback import ScoringLoopback

BUDGET = Budget(name="loopback", num_requests=210, max_tokens=24, num_calibration=40)
SMALL = Budget(name="small", num_requests=12, max_tokens=8, num_calibration=6)


@pytest.fixture
def stack(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stack:
    made = make_stack(tmp_path, monkeypatch)
    monkeypatch.setattr("lossguard.stages.workspace.scorer_factory", scorer_factory)
    return made


def config_of(stack: Stack, urls: dict[str, str], scorer: ScorerConfig) -> Config:
    options: dict[str, Any] = {"logit_dtype": "bfloat16"}
    systems = {
        name: SystemConfig(name=name, engine="vllm", options={"url": url, **options}) for name, url in urls.items()
    }
    return replace(stack.config, systems=systems, scorer=scorer)


class RoundedModel(ToyModel):
    """Serves logits in bfloat16, as most stacks do."""

    def _logits(self, ids: Sequence[int]) -> np.ndarray:
        values = super()._logits(list(ids)).astype(np.float32).view(np.uint32)
        rounded = (values + 0x7FFF + ((values >> 16) & 1)) & 0xFFFF0000
        return np.asarray(rounded.astype(np.uint32).view(np.float32), dtype=np.float64)


@contextmanager
def judged(stack: Stack, kind: str, budget: Budget) -> Iterator[GateResult]:
    """Two candidates in bfloat16, one of them with wrong tokens, scored by a server."""
    with (
        ScoringLoopback(kind, noise_nats=1e-4) as scoring,
        Loopback("vllm", RoundedModel()) as stock,
        Loopback("vllm", RoundedModel(salt=1)) as good,
        Loopback("vllm", RoundedModel(salt=1, faults=(wrong_token(every=9, position=5),))) as bad,
    ):
        scorer = ScorerConfig(engine=kind, options={"url": scoring.url, "logit_dtype": "float32"})
        config = config_of(stack, {"stock": stock.url, "good": good.url, "bad": bad.url}, scorer)
        yield run_gate(Plan(config, candidates=["good", "bad"], budget=budget, folder=stack.folder / "runs"))


def test_a_run_says_what_its_scorer_cannot_tell(stack: Stack) -> None:
    with judged(stack, "sglang", SMALL) as result:
        reasons = " ".join(result.report["thresholds"]["reasons"])
        loaded = result.report["fingerprint"]["scorer"]["loaded"]
    assert "is q alone: the scorer gives log-probabilities" in reasons
    assert "differ by multiples of 0.125 nats" in reasons
    assert result.report["thresholds"]["delta_median_nats"] == 0.125
    assert loaded["fp32_head"] is True
    assert loaded["capabilities"]["logits"] is False
    assert "scoring overlaps serving" in (result.run_folder / "log.txt").read_text()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sglang", "vllm"])
def test_a_server_scores_a_whole_run(stack: Stack, kind: str) -> None:
    with judged(stack, kind, BUDGET) as result:
        assert result.claim("good/lossless").verdict is Verdict.PASS, render_report(result.report)
        assert result.claim("bad/lossless").evidence.check("event").verdict is Verdict.FAIL


def test_sampled_plans_are_refused_before_anything_is_served(stack: Stack) -> None:
    with Loopback("vllm") as stock, ScoringLoopback("sglang") as scoring:
        config = config_of(
            stack, {"stock": stock.url, "good": stock.url}, ScorerConfig(engine="sglang", options={"url": scoring.url})
        )
        with pytest.raises(UsageError, match="LG0516"):
            run_gate(Plan(config, candidates=["good"], budget=SMALL, folder=stack.folder / "runs", temperature=1.0))
    assert stock.bodies == []


def toy_scorer(_model_path: str, options: dict[str, Any]) -> ToyScorer:
    assert not options
    return ToyScorer(ToyTarget())


@pytest.fixture
def written(stack: Stack, monkeypatch: pytest.MonkeyPatch) -> Callable[[str, str], Path]:
    """A configuration whose scorer is the toy's own, and a second one behind a url."""
    monkeypatch.setattr("lossguard.stages.scorer_comparison.calibration_requests", _toy_requests)

    def write(stock: str, second: str) -> Path:
        path = stack.folder / "lossguard.toml"
        path.write_text(
            'model = "model"\n[prompts]\nsets = ["prompts.jsonl"]\nseed = 1\n'
            f'[systems.stock]\nengine = "vllm"\nurl = "{stock}"\n'
            f'[systems.good]\nengine = "vllm"\nurl = "{stock}"\n'
            f'[scorer]\nengine = "{__name__}:toy_scorer"\n'
            f'[scorers.second]\nengine = "sglang"\nurl = "{second}"\ntop_k = 5\n'
        )
        return path

    return write


def _toy_requests(config: Config, max_tokens: int) -> Any:
    from lossguard.prompts import load_prompt_set
    from lossguard.prompts.base import Split
    from lossguard.prompts.render import build_requests, load_tokenizer
    from lossguard.records import SamplingParams

    tokenizer = load_tokenizer(config.folder / config.model)
    prompts = load_prompt_set(("prompts.jsonl",), tokenizer=tokenizer, seed=1, folder=config.folder, num_calibration=20)
    sampling = SamplingParams(max_tokens=max_tokens)
    return build_requests(prompts.split(Split.CALIBRATION), tokenizer, sampling, stop_ids=(0,))


def test_the_doctor_measures_the_noise_between_two_scorers(
    written: Callable[[str, str], Path], capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    with Loopback("vllm") as stock, ScoringLoopback("sglang", noise_nats=0.1) as second:
        path = written(stock.url, second.url)
        report = tmp_path / "noise.json"
        code = run_cli(["doctor", "--config", str(path), "--scorer", "second", "--json", str(report)])
    assert code == 0
    shown = capsys.readouterr().out
    assert "16 replies of stock" in shown
    assert "second knows ranks up to 5 only" in shown
    found = json.loads(report.read_text())
    noise = found["noise"]
    assert noise["num_compared"] == noise["num_tokens"] > 500
    assert 0.001 < noise["gap"]["rms_nats"] < 0.2
    assert noise["gap"]["rms_nats"] < noise["gap"]["p999_nats"] <= noise["gap"]["max_nats"]
    assert [side["name"] for side in found["sides"]] == [f"{__name__}:toy_scorer", "second"]


def test_the_doctor_scores_what_a_run_has_kept(stack: Stack, written: Callable[[str, str], Path]) -> None:
    with Loopback("vllm") as stock, ScoringLoopback("sglang") as second:
        config = load_config(written(stock.url, second.url))
        result = run_gate(Plan(config, candidates=["good"], budget=SMALL, folder=stack.folder / "runs"))
        served = len(stock.bodies)
        found = compare_scorers(config, "second", run=result.run_folder)
    assert len(stock.bodies) == served, "nothing is served again"
    assert found.num_requests == SMALL.num_calibration + 2 * SMALL.num_requests
    assert found.noise.gap.max_nats < 1e-4
    assert found.noise.num_other_best == 0
    assert "another best token at 0 positions" in "\n".join(comparison_in_words(found))


def test_an_unknown_scorer_names_the_near_miss(written: Callable[[str, str], Path]) -> None:
    config = load_config(written("http://127.0.0.1:1", "http://127.0.0.1:2"))
    with pytest.raises(UsageError, match="'second'") as caught:
        compare_scorers(config, "secnod")
    assert caught.value.code == "LG0621"
