"""Drafters from and to folders with ``config.json`` and ``model.safetensors``: nothing missing, nothing left over."""

from __future__ import annotations

import json
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lossguard.errors import IntegrityError, UsageError
from lossguard_mechanisms.drafters.config import DrafterConfig, config_from_json, config_to_json
from lossguard_mechanisms.drafters.fresh import AnyDrafter, drafter_of
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.manifest import MANIFEST_NAME, verify_files

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
_MOST_NAMES_SHOWN = 3


def load_drafter(folder: Path, target: Target) -> AnyDrafter:
    """A drafter of ``target``, on its device and in its dtype, in evaluation mode without gradients.

    The files of a folder with a ``MANIFEST.toml`` are checked against it. Raises UsageError LG1401 for a config that is
    not supported and LG1402 for a folder without config or weights or a target that does not fit, IntegrityError LG1403
    for files that cannot be read, LG1404 for tensors that do not fit, LG1305 for files with another hash.
    """
    if (folder / MANIFEST_NAME).is_file():
        verify_files(folder)
    config = read_drafter_config(folder)
    last = max(config.feature_layers)
    if last >= target.config.num_layers:
        raise _incomplete(f"{folder} reads layer {last}, the target has {target.config.num_layers}")
    tensors = _read_tensors(folder / WEIGHTS_NAME)
    with torch.device("meta"):
        drafter = drafter_of(config, target)
    _require_same(tensors, {name: tensor.shape for name, tensor in drafter.state_dict().items()})
    drafter.load_state_dict(tensors, assign=True)
    weight = target.embedding.weight
    return drafter.to(device=weight.device, dtype=weight.dtype).eval().requires_grad_(requires_grad=False)


def save_drafter(drafter: AnyDrafter, folder: Path, *, dtype: torch.dtype) -> None:
    """Write config and weights, rounded to ``dtype``."""
    folder.mkdir(parents=True, exist_ok=True)
    data = json.dumps(config_to_json(drafter.config), indent=2)
    (folder / CONFIG_NAME).write_text(data + "\n", encoding="utf-8")
    tensors = {name: tensor.detach().to("cpu", dtype).contiguous() for name, tensor in drafter.state_dict().items()}
    save_file(tensors, folder / WEIGHTS_NAME, metadata={"format": "pt"})


def read_drafter_config(folder: Path) -> DrafterConfig:
    """The config of a drafter's folder. Raises UsageError LG1401 or LG1402, IntegrityError LG1403."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise _incomplete(f"{folder} has no {CONFIG_NAME}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return config_from_json(data)


def _read_tensors(path: Path) -> dict[str, Tensor]:
    if not path.is_file():
        raise _incomplete(f"{path.parent} has no {WEIGHTS_NAME}")
    try:
        return load_file(path)
    except (OSError, SafetensorError) as error:
        raise _unreadable(path, error) from error


def _require_same(tensors: dict[str, Tensor], shapes: dict[str, torch.Size]) -> None:
    surplus, missing = sorted(tensors.keys() - shapes.keys()), sorted(shapes.keys() - tensors.keys())
    other = [name for name, shape in shapes.items() if name in tensors and tensors[name].shape != shape]
    parts = (("missing", missing), ("unknown", surplus), ("of another shape", other))
    shown = [f"{len(names)} {what}: {', '.join(names[:_MOST_NAMES_SHOWN])}" for what, names in parts if names]
    if shown:
        raise IntegrityError(
            f"the drafter's weights do not fit its config and target: {'; '.join(shown)}",
            why="a tensor that is guessed or left out would make a drafter of another kind",
            fix="use the config and the weights of one drafter, with the target that it was trained for",
            code="LG1404",
        )


def _incomplete(found: str) -> UsageError:
    return UsageError(
        found,
        why="a drafter is a config and its weights, for one target",
        fix="give the folder that the training stages wrote, with its own target",
        code="LG1402",
    )


def _unreadable(path: Path, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"{path} cannot be read: {error}",
        why="a part of a drafter is no drafter",
        fix="copy the folder again",
        code="LG1403",
    )
