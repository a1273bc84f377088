"""transformers loads W12 by its own registration, and the model computes what the bf16 one computes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import nn

from lossguard.errors import UsageError
from lossguard_mechanisms.weights.w12.convert import convert
from lossguard_mechanisms.weights.w12.linear import W12Linear
from lossguard_mechanisms.weights.w12_plugins.transformers_quantizer import W12Config


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with random weights."""
    config = transformers.LlamaConfig(
        vocab_size=96, hidden_size=64, intermediate_size=96, num_hidden_layers=2, num_attention_heads=4,
        num_key_value_heads=2, tie_word_embeddings=False,
    )  # fmt: skip
    torch.manual_seed(0)
    model: Any = transformers.LlamaForCausalLM(config)
    target = tmp_path_factory.mktemp("tiny")
    model.to(torch.bfloat16).save_pretrained(target)
    return target


def load(folder: Path, **options: Any) -> Any:
    settings = {"dtype": torch.bfloat16, **options}
    return transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True, **settings).eval()


def test_every_linear_layer_is_converted_and_logits_are_equal(folder: Path) -> None:
    model, plain = load(folder, quantization_config=W12Config()), load(folder)
    layers = [layer for layer in plain.modules() if isinstance(layer, nn.Linear)]
    assert len([layer for layer in model.modules() if isinstance(layer, W12Linear)]) == len(layers) == 15
    assert not any(isinstance(layer, nn.Linear) for layer in model.modules())
    assert model.hf_quantizer.left == {}
    ids = torch.arange(24).view(2, 12)
    with torch.inference_mode():
        assert torch.equal(model(ids).logits, plain(ids).logits)


def test_a_model_in_another_type_is_refused(folder: Path) -> None:
    with pytest.raises(UsageError) as caught:
        load(folder, quantization_config=W12Config(), dtype=torch.float32)
    assert caught.value.code == "LG1215"


def test_a_converted_folder_names_its_loader(folder: Path, tmp_path: Path) -> None:
    convert(folder, tmp_path / "w12")
    assert json.loads((tmp_path / "w12/config.json").read_text())["quantization_config"]["quant_method"] == "w12"
    with pytest.raises(UsageError, match="load_model") as caught:
        load(tmp_path / "w12")
    assert caught.value.code == "LG1214"


def test_a_model_without_a_linear_layer_is_refused() -> None:
    quantizer = transformers.quantizers.auto.AUTO_QUANTIZER_MAPPING["w12"](W12Config(), pre_quantized=False)
    with pytest.raises(UsageError, match="it has no") as caught:
        quantizer._process_model_after_weight_loading(nn.Embedding(4, 4))
    assert caught.value.code == "LG1216"


def test_it_cannot_be_saved_as_if_it_were_plain(folder: Path, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="not serializable"):
        load(folder, quantization_config=W12Config()).save_pretrained(tmp_path)
