"""A loaded model must hold what its file holds."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from lossguard.errors import IntegrityError, UsageError
from lossguard_mechanisms.weights.w12.loader import load_model, require_equal


def tied_model() -> tuple[nn.Module, Tensor]:
    """A model whose head shares the weights of its embedding, and a copy of these."""
    embed, head = nn.Embedding(8, 4), nn.Linear(4, 8, bias=False)
    head.weight = embed.weight
    return nn.ModuleDict({"embed": embed, "head": head}), embed.weight.detach().clone()


def test_tied_weights_need_one_entry() -> None:
    model, weight = tied_model()
    require_equal(model, {"embed.weight": weight})  # raises where anything differs
    with pytest.raises(IntegrityError):
        require_equal(model, {"embed.weight": -weight})


def test_one_other_bit_is_refused() -> None:
    model, other = tied_model()
    other.view(torch.int32)[3, 2] ^= 1
    with pytest.raises(IntegrityError, match=r"embed\.weight") as caught:
        require_equal(model, {"embed.weight": other})
    assert caught.value.code == "LG1212"


def test_a_weight_that_the_file_lacks_is_refused() -> None:
    """A loader would have filled it with random numbers."""
    with pytest.raises(IntegrityError, match=r"embed\.weight"):
        require_equal(tied_model()[0], {})


@pytest.mark.parametrize("architectures", ["[]", '["NoSuchModel"]'])
def test_an_unknown_architecture_is_refused(architectures: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(f'{{"model_type": "llama", "architectures": {architectures}}}')
    with pytest.raises(UsageError) as caught:
        load_model(tmp_path)
    assert caught.value.code == "LG1213"
