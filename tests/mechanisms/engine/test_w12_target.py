"""The embedded engine with W12 weights: token for token what bf16 weights serve, from fewer bytes."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from lossguard.engines.base import EngineSpec
from lossguard.errors import UsageError
from lossguard_mechanisms.engine.adapter import EmbeddedEngine
from lossguard_mechanisms.engine.options import EmbeddedOptions, parse_options, resolve_packing
from lossguard_mechanisms.engine.w12_target import convert_target
from lossguard_mechanisms.targets.weights import load_target
from lossguard_mechanisms.weights.w12.linear import W12Linear
from tests.mechanisms.engine.test_committed_models import TARGET, requests

pytestmark = pytest.mark.skipif(not (TARGET / "model.safetensors").is_file(), reason="no committed hybrid target")
NUM_LAYERS = 33
OPTIONS = {"device": "cpu", "dtype": "bfloat16", "threads": 1, "slots": 4, "cache_tokens": 1024}


def replies(**options: object) -> dict[str, tuple[int, ...]]:
    """Short replies from the committed target, which tell how many layers have W12."""
    engine = EmbeddedEngine(EngineSpec(name="w12", model_path=str(TARGET), options={**OPTIONS, **options}))
    asked = [replace(one, sampling=replace(one.sampling, max_tokens=8)) for one in requests(0.0, 8)[:3]]
    assert engine.loaded_facts() == {}
    outputs = list(engine.serve(asked))
    engine.close()
    told = {"w12": f"{NUM_LAYERS} of {NUM_LAYERS} layers"} if options.get("weights") == "w12" else {}
    assert engine.loaded_facts() == told
    assert {output.telemetry.get("w12_layers") for output in outputs} == {(NUM_LAYERS,) if told else None}
    return {output.request_id: output.ids for output in outputs}


def test_tokens_are_those_of_bf16_weights() -> None:
    torch.set_num_threads(1)
    assert replies(weights="w12") == replies(packed_weights=False)


def test_every_product_of_the_hybrid_is_converted() -> None:
    target = load_target(Path(TARGET), dtype=torch.bfloat16, device=torch.device("cpu")).target
    before = target.head_weight.clone()
    convert_target(target)
    assert not any(isinstance(layer, torch.nn.Linear) for layer in target.modules())
    assert isinstance(target.head, W12Linear)
    assert torch.equal(target.head_weight, before)


def test_another_type_is_refused() -> None:
    with pytest.raises(UsageError) as caught:
        replies(weights="w12", dtype="float32")
    assert caught.value.code == "LG1201"


def test_compiled_code_may_have_it() -> None:
    spec = EngineSpec(
        name="w12", model_path=str(TARGET), options={"weights": "w12", "compiled": True, "device": "cuda"}
    )
    options = parse_options(spec)
    assert (options.weights, options.compiled) == ("w12", True)


def test_a_layer_that_does_not_fit_stays_and_is_named() -> None:
    target = load_target(Path(TARGET), dtype=torch.bfloat16, device=torch.device("cpu")).target
    wild = target.get_submodule("layers.1.mlp.in_proj").weight
    assert isinstance(wild, torch.Tensor)
    with torch.no_grad():
        wild[:, ::2] *= 2.0**40
    found = convert_target(target)
    assert list(found.left) == ["layers.1.mlp.in_proj"]
    assert "would escape" in found.left["layers.1.mlp.in_proj"]
    num = found.num_layers
    assert str(found).startswith(f"{num} of {num + 1} layers, left dense: layers.1.mlp.in_proj (raw: ")


def test_a_target_of_which_nothing_fits_is_refused() -> None:
    target = load_target(Path(TARGET), dtype=torch.bfloat16, device=torch.device("cpu")).target
    with torch.no_grad():
        for parameter in target.parameters():
            parameter[..., ::2] *= 2.0**40
    with pytest.raises(UsageError) as caught:
        convert_target(target)
    assert caught.value.code == "LG1216"


def test_the_layout_for_cpus_gives_way_with_a_reason() -> None:
    options = EmbeddedOptions(weights="w12")
    assert resolve_packing(options, dtype="bfloat16", device="cpu") == (False, "the weights are w12")
