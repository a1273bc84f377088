"""Models made lossy on purpose, and layers that must not be."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lossguard.engines.packed_linear import PackedLinear, pack_linear_layers
from lossguard.engines.transformers_loading import round_trip_weights
from lossguard.errors import EngineError
from tests.engines.tiny_systems import ids_of, load, make_requests, serve


@pytest.mark.parametrize(("levels", "largest"), [(7, 15), (127, 255)])
def test_a_round_trip_leaves_few_values_per_row(tiny_path: str, levels: int, largest: int) -> None:
    model: Any = load(tiny_path)
    before = {name: layer.weight.clone() for name, layer in model.named_modules() if hasattr(layer, "weight")}
    round_trip_weights(model, levels=levels)
    weight = model.model.layers[0].mlp.up_proj.weight
    original = before["model.layers.0.mlp.up_proj"]
    assert all(row.unique().numel() <= largest for row in weight)
    step = original.abs().amax(dim=1, keepdim=True) / levels
    assert bool(((weight - original).abs() <= 0.5001 * step).all())
    assert not torch.equal(weight, original)
    assert torch.equal(model.lm_head.weight, before["lm_head"])
    assert torch.equal(model.model.embed_tokens.weight, before["model.embed_tokens"])


@pytest.mark.parametrize("options", [{"quantization": "int8-dynamic"}, {"weight_round_trip": "int4"}])
def test_lossy_systems_serve_other_tokens(tiny_path: str, options: dict[str, str]) -> None:
    requests = make_requests(max_tokens=30)
    assert ids_of(serve(tiny_path, requests, **options)) != ids_of(serve(tiny_path, requests))


@pytest.mark.parametrize("num_rows", [1, 3, 17, 64, 300])
def test_packed_layers_are_equal_bit_for_bit(num_rows: int) -> None:
    torch.manual_seed(num_rows)
    plain = torch.nn.Sequential(torch.nn.Linear(96, 160), torch.nn.Linear(160, 33, bias=False)).to(torch.bfloat16)
    values = torch.randn(2, num_rows, 96, dtype=torch.bfloat16)
    with torch.inference_mode():
        expected = plain(values)
        assert pack_linear_layers(plain) == 2
        assert isinstance(plain[0], PackedLinear)
        assert torch.equal(plain(values), expected)


def test_packed_weights_serve_the_same_tokens(tiny_bfloat16_path: str) -> None:
    requests = make_requests(12, max_tokens=30)
    packed = serve(tiny_bfloat16_path, requests, packed_weights=True)
    assert ids_of(packed) == ids_of(serve(tiny_bfloat16_path, requests))


def test_packed_weights_need_bfloat16(tiny_path: str) -> None:
    with pytest.raises(EngineError, match="float32 on cpu"):
        serve(tiny_path, make_requests(1), packed_weights=True)
