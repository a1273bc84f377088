"""transformers models with W12 layers: from a converted folder, or converted while an ordinary one is loaded."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from lossguard_mechanisms.weights.w12.codec import decode
from lossguard_mechanisms.weights.w12.conversion_record import RECORD_NAME, read_complete_record
from lossguard_mechanisms.weights.w12.failures import missing_package, model_differs, unknown_architecture
from lossguard_mechanisms.weights.w12.linear import replace_linears
from lossguard_mechanisms.weights.w12.shard_reader import opened_w12
from lossguard_mechanisms.weights.w12.verify import tensor_problem
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor


def load_model(folder: Path) -> nn.Module:
    """The model of a folder with W12 in its linear layers, in evaluation mode on the CPU.

    ``folder`` is a converted one, or any bf16 model in safetensors, which is then converted in memory. A converted
    one is checked against its checksums, and the loaded model against its weights.

    Raises IntegrityError LG1203, LG1204, LG1209 or LG1212, UsageError LG1210 or LG1213.
    """
    transformers = _transformers()
    config = transformers.AutoConfig.from_pretrained(folder, local_files_only=True)
    model_class = _class_of(transformers, config, folder)
    if not (folder / RECORD_NAME).is_file():
        model: nn.Module = model_class.from_pretrained(folder, dtype=torch.bfloat16, local_files_only=True)
        replace_linears(model)
        return model.eval()
    dense, coded = _read(folder)
    del config.quantization_config  # no quantizer of transformers: the weights are handed over here
    model = model_class.from_pretrained(None, config=config, state_dict=dense, dtype=torch.bfloat16)
    require_equal(model, dense)
    replace_linears(model, coded)
    return model.eval()


def _class_of(transformers: Any, config: Any, folder: Path) -> Any:
    names = tuple(config.architectures or ())
    found = getattr(transformers, names[0], None) if names else None
    if found is None:
        raise unknown_architecture(folder, names)
    return found


def _read(folder: Path) -> tuple[dict[str, Tensor], dict[str, W12Tensor]]:
    """All tensors in dense form, and those in W12 as stored."""
    dense: dict[str, Tensor] = {}
    coded: dict[str, W12Tensor] = {}
    for name, finished in sorted(read_complete_record(folder).shards.items()):
        with opened_w12(folder / name, finished.header_sha256) as shard:
            for tensor in shard.metadata.tensors:
                stored = shard.stored(tensor)
                if isinstance(stored, W12Tensor):
                    coded[tensor] = stored
                    dense[tensor] = decode(stored)
                else:
                    dense[tensor] = stored
    return dense, coded


def require_equal(model: nn.Module, dense: dict[str, Tensor]) -> None:
    """Every parameter of a model is in ``dense``, or tied to one that is, bit for bit. Raises IntegrityError LG1212."""
    held = dict(model.named_parameters(remove_duplicate=True))
    for name, parameter in held.items():
        if name not in dense or tensor_problem(parameter.detach(), dense[name]) is not None:
            raise model_differs(name)


def _transformers() -> Any:
    try:
        import transformers
    except ModuleNotFoundError as error:
        raise missing_package("transformers") from error
    return transformers
