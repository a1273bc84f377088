"""The same code on an accelerator gives the same arrays and the same bits."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from lossguard_mechanisms.weights.w12.codec import decode, encode
from lossguard_mechanisms.weights.w12.q_view import q_weight
from tests.mechanisms.weights.w12.toy_weights import bf16_of, gaussian

pytestmark = pytest.mark.gpu

WEIGHTS = {
    "all patterns": bf16_of(torch.arange(65536)).view(256, 256),
    "gaussian": gaussian(1000, 4000),
    "rows of other scale": gaussian(500, 300) * torch.logspace(-3, 3, 500).to(torch.bfloat16)[:, None],
    "one weight": torch.ones(1, 1, dtype=torch.bfloat16),
}


@pytest.mark.parametrize("name", WEIGHTS)
def test_it_is_the_same_as_on_the_cpu(name: str) -> None:
    weight: Tensor = WEIGHTS[name]
    here, there = encode(weight), encode(weight.cuda())
    for part, array in there.parts().items():
        assert array.is_cuda
        assert torch.equal(array.cpu(), here.parts()[part]), part
    assert torch.equal(decode(there).cpu().view(torch.int16), weight.view(torch.int16))
    assert torch.equal(q_weight(there).cpu(), q_weight(here))
