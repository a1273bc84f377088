"""Compiled pieces of a target: one compilation serves all layers of a kind, with W12 weights too."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor

from lossguard_mechanisms.engine.fused_target import FusedTarget
from lossguard_mechanisms.engine.w12_target import convert_target
from lossguard_mechanisms.targets.config import ATTENTION, DELTA, DeltaShape
from lossguard_mechanisms.targets.decoder import DecoderLayer, Target
from lossguard_mechanisms.targets.initial_weights import random_target
from lossguard_mechanisms.targets.mixing import DeltaInputs
from lossguard_mechanisms.weights.w12.fused_linear import FusedW12Linear, fuse_linears
from tests.mechanisms.drafters.small import TIED_HYBRID

LAYERS_OF_A_KIND = 10
"""More than torch compiles of one function before it gives up (8)."""
PIECES = 6

CONFIG = replace(
    TIED_HYBRID,
    vocab_size=64,
    hidden_size=64,
    intermediate_size=80,
    layer_types=(DELTA, ATTENTION) * LAYERS_OF_A_KIND,
    head_dim=16,
    rotary_dim=8,
    delta=DeltaShape(num_key_heads=2, num_value_heads=4, key_dim=16, value_dim=16, conv_width=4),
)


class NoMixing:
    """Every row sees itself alone."""

    def attend(self, layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """See ``Mixing``."""
        return query

    def convolve(self, layer: int, channels: Tensor, weight: Tensor) -> Tensor:
        """See ``Mixing``."""
        return channels

    def recur(self, layer: int, inputs: DeltaInputs) -> Tensor:
        """See ``Mixing``."""
        return inputs.value


def uneven_target() -> Target:
    """Layers differ in how many weights escape, and in whether they have a base per row."""
    target = random_target(CONFIG, seed=0).to(torch.bfloat16)
    layers = [layer for layer in target.layers if isinstance(layer, DecoderLayer)]
    with torch.no_grad():
        for at, layer in enumerate(layers):
            for module in (layer.mixer.in_proj, layer.mixer.out_proj, layer.mlp.in_proj, layer.mlp.out_proj):
                module.weight.view(-1)[:at] = 2.0**-90
                if at % 3 == 0:
                    module.weight[::2] *= 2.0**-12
    return target.eval().requires_grad_(requires_grad=False)


class Compilations:
    """A backend of ``torch.compile`` that counts and generates nothing."""

    count = 0

    def __call__(self, graph: torch.fx.GraphModule, inputs: list[Tensor]) -> Callable[..., Any]:
        self.count += 1
        return graph.forward


@pytest.fixture
def compilations(monkeypatch: pytest.MonkeyPatch) -> Iterator[Compilations]:
    """Counts what ``FusedTarget`` compiles."""
    torch.compiler.reset()
    counter = Compilations()
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend=counter))
    yield counter
    torch.compiler.reset()


def hidden_of(target: Target, rows: int, *, is_compiled: bool) -> Tensor:
    """What the head would read, of ``rows`` rows."""
    ids = torch.arange(rows) * 7 % CONFIG.vocab_size
    with torch.inference_mode():
        model = FusedTarget(target, is_compiled=is_compiled)
        return model(ids, torch.arange(rows), NoMixing()).hidden


def test_layers_of_a_kind_are_compiled_once_though_their_escapes_differ(compilations: Compilations) -> None:
    target = uneven_target()
    convert_target(target)
    fuse_linears(target)
    fused = [layer for layer in target.modules() if isinstance(layer, FusedW12Linear)]
    assert len(fused) == 8 * LAYERS_OF_A_KIND + 1
    assert len({int(layer.packed.escape_start[-1]) for layer in fused}) > LAYERS_OF_A_KIND
    found = hidden_of(target, 5, is_compiled=True)
    assert compilations.count == PIECES
    assert torch.equal(found, hidden_of(target, 5, is_compiled=False))
