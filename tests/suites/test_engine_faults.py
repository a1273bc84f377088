"""Faults in the embedded engine's own steps: each strikes, none without it, and the gate sees them."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lossguard.config import Config, PromptsConfig, ScorerConfig, SystemConfig
from lossguard.engines.base import EngineSpec
from lossguard.errors import UsageError
from lossguard.gate import run_gate
from lossguard.plan import Budget, Plan
from lossguard.records import Request, Verdict
from lossguard_mechanisms.trees.names import BEST_FIRST
from lossguard_mechanisms.trees.tree import Path as TreePath
from lossguard_mechanisms.trees.tree import tree_of
from lossguard_suites.adversarial.engine_faults import STAGES, create, with_refused
from lossguard_suites.adversarial.faults import fault
from tests.mechanisms.engine.doubles import (
    branching_speculation,
    core_of,
    knowing_speculation,
    random_prompts,
    request,
    serve,
)
from tests.mechanisms.targets.tiny import pair

FIXTURES = Path(__file__).parents[2] / "fixtures"
PLANTED = tuple(name for name in STAGES if name != "none")


def requests() -> list[Request]:
    """Long enough for steps after accepted and after refused drafts."""
    return [request(f"r{at}", prompt, 24) for at, prompt in enumerate(random_prompts(4, seed=1))]


def test_every_fault_is_one_of_the_list() -> None:
    assert [fault(name).code for name in PLANTED] == ["F1", "F2", "F3", "F23", "F24", "F27"]


@pytest.mark.parametrize("is_tree", [False, True], ids=["chain", "tree"])
def test_each_fault_changes_what_is_served_and_none_without_it(*, is_tree: bool) -> None:
    torch.set_num_threads(1)
    target, asked = pair("qwen3_5_text").ours, requests()
    plain = serve(core_of(target, pages=200), asked)
    told = {item.prompt_ids: plain[item.id] for item in asked}
    for name, stage in STAGES.items():
        speculation = branching_speculation(told, BEST_FIRST) if is_tree else knowing_speculation(told)
        core = core_of(target, pages=200, speculation=speculation, make_stage=stage)
        assert (serve(core, asked) == plain) is (name == "none"), name


def test_a_longer_path_goes_down_from_its_last_node() -> None:
    tree = tree_of(torch.arange(14).view(2, 7), torch.tensor([[-1, 0, 0, 1, 2, 4, 5], [-1, 0, 1, 2, 3, 4, 0]]))
    path = TreePath(
        nodes=torch.tensor([[0, 2, 1, 3, 4, 5, 6], [0, 6, 1, 2, 3, 4, 5]]),
        num_nodes=torch.tensor([2, 2]),
        emitted=torch.zeros(2, 7, dtype=torch.int64),
    )
    one, all_of_them = with_refused(tree, path, 1), with_refused(tree, path, 64)
    assert one.nodes[0, : int(one.num_nodes[0])].tolist() == [0, 2, 4]
    assert all_of_them.nodes[0, : int(all_of_them.num_nodes[0])].tolist() == [0, 2, 4, 5, 6]
    assert all_of_them.num_nodes[1] == 2  # node 6 is a leaf
    assert path.num_nodes.tolist() == [2, 2]


def test_an_unknown_fault_is_refused() -> None:
    spec = EngineSpec(name="x", model_path=str(FIXTURES / "hybrid-target"), options={"fault": "kept-draft"})
    with pytest.raises(UsageError, match="Did you mean 'kept-drafts'"):
        create(spec)


@pytest.mark.slow
@pytest.mark.skipif(not (FIXTURES / "hybrid-target/model.safetensors").is_file(), reason="no committed hybrid target")
def test_the_gate_sees_a_kept_draft_in_the_engines_trees(tmp_path: Path) -> None:
    common = {"threads": 1, "device": "cpu"}
    tree = {"drafter": str(FIXTURES / "hybrid-dflash2"), "policy": "best-first", "nodes": 16, "slots": 8, **common}
    factory = "lossguard_suites.adversarial.engine_faults:create"
    systems = {
        "stock": SystemConfig(name="stock", engine="embedded", options={"slots": 16, **common}),
        "kept-drafts": SystemConfig(name="kept-drafts", engine=factory, options={"fault": "kept-drafts", **tree}),
    }
    config = Config(
        model=str(FIXTURES / "hybrid-target"),
        systems=systems,
        scorer=ScorerConfig(options=common),
        prompts=PromptsConfig(sets=("demo",), seed=17),
        seed=17,
    )
    budget = Budget(name="faults", num_requests=32, max_tokens=40, num_calibration=24)
    result = run_gate(Plan(config, candidates=("kept-drafts",), budget=budget, folder=tmp_path))
    (claim,) = result.claims
    assert claim.verdict is Verdict.FAIL
    failing = {check.check for check in claim.evidence.checks if check.verdict is Verdict.FAIL}
    assert failing & {"rate", "event"}
