"""The demo: its two targets, what it says without their files, and the whole of it on the committed hybrid."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from lossguard import demo_targets
from lossguard.cli.main import run
from lossguard.demo import Demo, run_demo
from lossguard.demo_targets import HYBRID, SMOLLM2, DemoTarget, demo_target
from lossguard.engines.base import EngineSpec
from lossguard.engines.transformers_options import parse_options as parse_transformers_options
from lossguard.errors import UsageError
from lossguard.gate import recheck
from lossguard.prompts.loading import load_prompt_set
from lossguard.prompts.render import load_tokenizer, prompt_clusters
from lossguard.records import Verdict
from lossguard_mechanisms.engine.options import parse_options as parse_embedded_options

MODEL = demo_targets.CHECKOUT / "fixtures" / "hybrid-target"
PARSERS = {"embedded": parse_embedded_options, "transformers": parse_transformers_options}
TARGETS = pytest.mark.parametrize("target", [HYBRID, SMOLLM2], ids=lambda target: target.name)


@TARGETS
def test_every_candidate_is_a_system_whose_options_its_engine_takes(target: DemoTarget) -> None:
    config = target.config(5)
    assert set(config.systems) == {"stock", *(expected.candidate for expected in target.expected)}
    for system in config.systems.values():
        PARSERS[system.engine](EngineSpec(name=system.name, model_path=config.model, options=system.options))
    assert {system.engine for system in config.systems.values()} == {config.systems["stock"].engine}


def test_both_targets_have_the_same_list_but_for_the_kind_of_speculation() -> None:
    *shared, own = HYBRID.expected
    *same, other = SMOLLM2.expected
    assert shared == same
    assert (own.verdict, other.verdict) == (Verdict.PASS, Verdict.PASS)
    assert sum(expected.verdict is Verdict.PASS for expected in HYBRID.expected) == 2


def test_a_target_that_is_served_ahead_leaves_a_core_for_it() -> None:
    config = HYBRID.config(17)
    assert HYBRID.leaves_a_core
    assert {system.options["threads"] for system in config.systems.values()} == {1}
    assert config.scorer.options["threads"] == 1
    assert not SMOLLM2.leaves_a_core, "its systems take both cores"


def test_the_hybrids_lossless_candidates_are_asked_alone_and_in_batches() -> None:
    """With it the demo is the engine's own gate: a chain at batches of 1, 8 and 32, plain decoding at 8 and 32."""
    config = HYBRID.config(17)
    levels = {name: dict(system.exercise) for name, system in config.systems.items() if system.exercise}
    assert levels == {"embedded-stock": {"concurrency": [1, 8, 32]}, "other-batches": {"concurrency": [8, 32]}}
    assert levels.keys() == {expected.candidate for expected in HYBRID.expected if expected.verdict is Verdict.PASS}
    assert "drafter" in config.systems["embedded-stock"].options
    assert "drafter" not in config.systems["other-batches"].options


@TARGETS
def test_the_seed_redraws_prompts_and_the_places_of_faults(target: DemoTarget) -> None:
    one, other = target.config(1), target.config(2)
    assert (one.prompts.seed, other.prompts.seed) == (1, 2)
    (planted,) = one.systems["wrong-token"].options["logits_processors"]
    assert planted["seed"] == 1
    assert "seed" not in one.systems["biased-ids"].options["logits_processors"][0]


@pytest.mark.parametrize("seed", [1, 2, 3, 17])
def test_the_hybrids_prompts_are_clusters_enough(seed: int) -> None:
    tokenizer, budget = load_tokenizer(MODEL), HYBRID.budget
    prompts = load_prompt_set(
        ("demo",), tokenizer=tokenizer, seed=seed, num_calibration=budget.num_calibration, num_test=budget.num_requests
    )
    assert len(prompts.split("calibration")) == budget.num_calibration
    assert len(set(prompt_clusters(prompts.split("test"), tokenizer).values())) >= 240


def test_without_the_committed_weights_it_says_what_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(demo_targets, "CHECKOUT", tmp_path)
    with pytest.raises(UsageError, match="LG0407") as found:
        HYBRID.config(17)
    assert str(tmp_path / "fixtures" / "hybrid-target") in str(found.value)
    assert SMOLLM2.config(17).model == "smollm2"
    assert run(["demo", "--folder", str(tmp_path / "runs")]) == 4
    assert "lossguard demo --target smollm2" in capsys.readouterr().err
    assert not (tmp_path / "runs").exists()


def test_an_unknown_target_names_the_near_miss() -> None:
    with pytest.raises(UsageError, match="LG0408") as found:
        demo_target("hybird")
    assert "Did you mean 'hybrid'?" in str(found.value)


def under_way(run: Path, system: str) -> Counter[float]:
    """How many requests were sent as the first, second, ... of those under way."""
    lines = (run / system / "outputs.jsonl").read_text(encoding="utf-8").splitlines()
    return Counter(json.loads(line)["telemetry"]["under_way"][0] for line in lines)


@pytest.mark.slow
def test_every_verdict_of_the_demo_is_right(tmp_path: Path) -> None:
    """All systems, sizes and prompts of ``make demo``; then the command that its report prints for a failure."""
    result = run_demo(Demo(), folder=tmp_path)
    assert [row[0] for row in result.rows() if row[3] == "WRONG"] == []
    assert result.exit_code == 0
    claim = result.gate.claim("wrong-token/lossless")
    assert set(result.gate.report["prompts"]["sets"]) == {"chat", "code", "long", "math", "reasoning"}
    for name, num_alone in (("other-batches", 0), ("embedded-stock", 25)):
        numbers = under_way(result.gate.run_folder, name)
        assert numbers[1] >= num_alone
        assert numbers[8] >= 15
        assert max(numbers) == 32
    sizes = result.gate.report["claims"][0]["sizes"]
    assert sizes["num_clusters"] >= 240
    assert min(sizes["num_tokens_candidate"], sizes["num_tokens_stock"]) > 14_500
    place = claim.evidence.examples[0]
    found = recheck(
        Path(result.gate.report["run"]["folder"]),
        request_id=place["request_id"],
        position=place["position"],
        candidate="wrong-token",
    )
    assert json.dumps(found.to_json())
