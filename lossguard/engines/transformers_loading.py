"""Loading a model for the transformers engine, exact or made lossy on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AutoModelForCausalLM, GenerationConfig, PreTrainedModel
from transformers.utils import logging as transformers_logging

from lossguard.engines.model_facts import ModelFacts
from lossguard.engines.packed_linear import pack_linear_layers
from lossguard.engines.transformers_options import TransformersOptions
from lossguard.errors import EngineError

ROUND_TRIP_LEVELS = {"int4": 7, "int8": 127}
LOAD_ERRORS = (OSError, ValueError, ImportError, RuntimeError, KeyError)


def resolve_dtype(options: TransformersOptions, facts: ModelFacts) -> tuple[str, str]:
    """(dtype of weights and served logits, reason)."""
    if options.quantization is not None:
        return "float32", f"{options.quantization} computes in float32"
    if options.dtype != "auto":
        return options.dtype, "given"
    return facts.dtype, "the dtype in the model's config.json"


def resolve_device(options: TransformersOptions) -> tuple[str, str]:
    """(torch device, reason)."""
    if options.device != "auto":
        return options.device, "given"
    if options.quantization is not None:
        return "cpu", f"{options.quantization} runs on the CPU only"
    if torch.cuda.is_available():
        return "cuda:0", "the first CUDA device, since one is present"
    return "cpu", "no CUDA device is present"


def load_model(path: str, options: TransformersOptions, facts: ModelFacts) -> PreTrainedModel:
    """The model in evaluation mode, without generation defaults of its own.

    ``generate`` fills what a request leaves open from ``model.generation_config``; an empty one keeps a model's
    recommended sampling from leaking into requests. Raises EngineError LG0209.
    """
    dtype, _ = resolve_dtype(options, facts)
    device, _ = resolve_device(options)
    with _quiet_loading():
        try:
            model: Any = AutoModelForCausalLM.from_pretrained(
                path, dtype=getattr(torch, dtype), attn_implementation=options.attention, local_files_only=True
            )
            model.to(device)
        except LOAD_ERRORS as error:
            raise _cannot_load(path, error) from error
    model.eval()
    empty_config: Any = GenerationConfig
    model.generation_config = empty_config()
    model = _made_lossy(model, options)
    return _packed(model, dtype, device) if options.packed_weights else model


def _made_lossy(model: PreTrainedModel, options: TransformersOptions) -> PreTrainedModel:
    """The natural positive controls. Embeddings and LM head stay as they are, as common quantisers leave them."""
    if options.weight_round_trip is not None:
        round_trip_weights(model, levels=ROUND_TRIP_LEVELS[options.weight_round_trip])
    if options.quantization is not None:
        _quantize_dynamic(model)
    return model


def _packed(model: PreTrainedModel, dtype: str, device: str) -> PreTrainedModel:
    onednn: Any = torch.backends.mkldnn
    if device != "cpu" or dtype != "bfloat16" or not onednn.is_available():
        raise EngineError(
            f"packed_weights needs bfloat16 on a CPU with oneDNN; this system has {dtype} on {device}",
            why="elsewhere it would change nothing, or change the numbers",
            fix='drop packed_weights, or set dtype = "bfloat16" and device = "cpu"',
            code="LG0209",
        )
    pack_linear_layers(model)
    return model


def round_trip_weights(model: PreTrainedModel, *, levels: int) -> None:
    """Round every linear layer's weight to ``2 * levels + 1`` steps per output row, in place.

    Row scale: largest magnitude / levels; round to nearest even; back to the layer's own dtype.
    """
    with torch.no_grad():
        for _, layer in _inner_linear_layers(model):
            weight = layer.weight.to(torch.float32)
            scale = weight.abs().amax(dim=1, keepdim=True).clamp_min(torch.finfo(torch.float32).tiny) / levels
            layer.weight.copy_((weight / scale).round() * scale)


def _quantize_dynamic(model: PreTrainedModel) -> None:
    from torch.ao import quantization

    quantize: Any = quantization.quantize_dynamic
    names = {name for name, _ in _inner_linear_layers(model)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch announces the removal of this module; the version is in fingerprints
        quantize(model, names, dtype=torch.qint8, inplace=True)


def _inner_linear_layers(model: Any) -> list[tuple[str, torch.nn.Linear]]:
    head = model.get_output_embeddings()
    layers = ((name, module) for name, module in model.named_modules() if module is not head)
    return [(name, module) for name, module in layers if isinstance(module, torch.nn.Linear)]


@contextmanager
def _quiet_loading() -> Iterator[None]:
    """No progress bar: a front draws its own."""
    logging: Any = transformers_logging
    was_enabled = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if was_enabled:
            logging.enable_progress_bar()


def _cannot_load(path: str, error: BaseException) -> EngineError:
    return EngineError(
        f"transformers cannot load {path}: {error}",
        why="without its model the system serves nothing",
        fix="check the folder, the options dtype, device and attention, and that this transformers knows the model",
        code="LG0209",
    )
