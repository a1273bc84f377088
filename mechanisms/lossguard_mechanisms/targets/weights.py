"""Targets from and to Hugging Face folders with safetensors, exactly: nothing missing, nothing left over."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from lossguard.errors import IntegrityError, UsageError
from lossguard_mechanisms.targets.checkpoint_names import Parameter, parameters_of
from lossguard_mechanisms.targets.config import TargetConfig, config_from_hf, config_to_hf
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.manifest import MANIFEST_NAME, verify_files

CONFIG_NAME = "config.json"
WEIGHTS_NAME = "model.safetensors"
FLOAT32_PARAMETERS = ("decay_log", "decay_bias")
_OTHER_PARTS = ("model.visual.", "visual.", "mtp.")  # of the multimodal checkpoints; not of a text decoder
_MOST_NAMES_SHOWN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedTarget:
    """A target in evaluation mode, without gradients."""

    target: Target
    notes: tuple[str, ...]
    """What was decided on the way: hashes checked or not, tensors that belong to other parts."""


def load_target(folder: Path, *, dtype: torch.dtype, device: torch.device | str = "cpu") -> LoadedTarget:
    """Read config and weights of a folder; the files of a folder with a ``MANIFEST.toml`` are checked against it.

    Weights are cast to ``dtype`` except the log decays and their biases, which stay in float32. Raises UsageError
    LG1301 for a config that is not supported and LG1302 for a folder without config or weights, IntegrityError LG1303
    for files that cannot be read, LG1304 for tensors that do not fit, LG1305 for files with another hash.
    """
    has_manifest = (folder / MANIFEST_NAME).is_file()
    if has_manifest:
        verify_files(folder)
    note = f"files checked against {MANIFEST_NAME}" if has_manifest else f"no {MANIFEST_NAME}: hashes not checked"
    config = read_config(folder)
    tensors, ignored = _read_tensors(folder)
    target = target_from_tensors(config, tensors, dtype=dtype).to(device)
    notes = [note, *([f"{len(ignored)} tensors of other parts left out, {ignored[0]!r} first"] if ignored else [])]
    return LoadedTarget(target=target, notes=tuple(notes))


def target_from_tensors(config: TargetConfig, tensors: Mapping[str, Tensor], *, dtype: torch.dtype) -> Target:
    """A target from the tensors of a checkpoint by their Hugging Face names. Raises IntegrityError LG1304."""
    parameters = list(parameters_of(config))
    _require_same_names(parameters, tensors, config)
    with torch.device("meta"):
        target = Target(config)
    state = {parameter.name: _to_ours(parameter, tensors, dtype) for parameter in parameters}
    shapes = {name: value.shape for name, value in target.state_dict().items()}
    wrong = [name for name, value in state.items() if value.shape != shapes[name]]
    if wrong:
        first = wrong[0]
        raise _unfit(f"{first} would be {tuple(state[first].shape)}, the config says {tuple(shapes[first])}")
    target.load_state_dict(state, assign=True)
    return target.eval().requires_grad_(requires_grad=False)


def tensors_of(target: Target, *, dtype: torch.dtype) -> dict[str, Tensor]:
    """The weights under their Hugging Face names, all of them rounded to ``dtype``, on the CPU."""
    state = target.state_dict()
    tensors: dict[str, Tensor] = {}
    for parameter in parameters_of(target.config):
        rows = state[parameter.name].detach().to("cpu", dtype)
        if parameter.order is not None:
            rows = torch.empty_like(rows).index_copy_(0, parameter.order, rows)
        parts = rows.split([source.num_rows for source in parameter.sources])
        for source, part in zip(parameter.sources, parts, strict=True):
            tensors[source.name] = (part[:, None] if parameter.has_middle_dimension else part).contiguous().clone()
    return tensors


def save_target(target: Target, folder: Path, *, dtype: torch.dtype) -> None:
    """Write ``config.json`` and ``model.safetensors`` as transformers reads them.

    The log decays are rounded to ``dtype`` too: transformers would do so when it loads the model in that dtype, and
    a scorer must see the same model as the engine.
    """
    folder.mkdir(parents=True, exist_ok=True)
    config = config_to_hf(target.config, dtype=str(dtype).removeprefix("torch."))
    (folder / CONFIG_NAME).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    save_file(tensors_of(target, dtype=dtype), folder / WEIGHTS_NAME, metadata={"format": "pt"})


def read_config(folder: Path) -> TargetConfig:
    """The config of a model folder. Raises UsageError LG1301 or LG1302, IntegrityError LG1303."""
    path = folder / CONFIG_NAME
    if not path.is_file():
        raise _incomplete(f"{folder} has no {CONFIG_NAME}")
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, error) from error
    return config_from_hf(data)


def _read_tensors(folder: Path) -> tuple[dict[str, Tensor], list[str]]:
    """Tensors of a text decoder, and the names of those of other parts."""
    paths = sorted(folder.glob("*.safetensors"))
    if not paths:
        raise _incomplete(f"{folder} has no *.safetensors")
    found: dict[str, Tensor] = {}
    for path in paths:
        try:
            found |= load_file(path)
        except (OSError, SafetensorError) as error:
            raise _unreadable(path, error) from error
    ignored = [name for name in found if name.startswith(_OTHER_PARTS)]
    kept = {name: tensor for name, tensor in found.items() if not name.startswith(_OTHER_PARTS)}
    return {name.replace("model.language_model.", "model."): tensor for name, tensor in kept.items()}, ignored


def _to_ours(parameter: Parameter, tensors: Mapping[str, Tensor], dtype: torch.dtype) -> Tensor:
    wanted = torch.float32 if parameter.name.endswith(FLOAT32_PARAMETERS) and dtype != torch.float64 else dtype
    for source in parameter.sources:
        if tensors[source.name].shape[0] != source.num_rows:
            raise _unfit(f"{source.name} has {tensors[source.name].shape[0]} rows, expected {source.num_rows}")
    if len({tensors[source.name].shape[1:] for source in parameter.sources}) > 1:
        raise _unfit(f"{parameter.sources[0].name} and its neighbours have rows of different lengths")
    rows = torch.cat([tensors[source.name].to(wanted) for source in parameter.sources])
    if parameter.has_middle_dimension:
        rows = rows.flatten(1)
    return rows if parameter.order is None else rows[parameter.order]


def _require_same_names(parameters: list[Parameter], tensors: Mapping[str, Tensor], config: TargetConfig) -> None:
    expected = {source.name for parameter in parameters for source in parameter.sources}
    allowed = expected | ({"lm_head.weight"} if config.tie_word_embeddings else set())
    missing, surplus = sorted(expected - tensors.keys()), sorted(tensors.keys() - allowed)
    if missing or surplus:
        shown = "; ".join(
            f"{len(names)} {what}: {', '.join(names[:_MOST_NAMES_SHOWN])}"
            for what, names in (("missing", missing), ("unknown", surplus))
            if names
        )
        raise _unfit(f"tensors {shown}")


def _incomplete(found: str) -> UsageError:
    return UsageError(
        found,
        why="a target is a config and its weights",
        fix="give a Hugging Face model folder with config.json and safetensors",
        code="LG1302",
    )


def _unreadable(path: Path, error: Exception) -> IntegrityError:
    return IntegrityError(
        f"{path} cannot be read: {error}",
        why="a part of a model is no model",
        fix="copy or download the folder again",
        code="LG1303",
    )


def _unfit(problem: str) -> IntegrityError:
    return IntegrityError(
        f"the weights do not fit the config: {problem}",
        why="a tensor that is guessed or left out would change every token without a trace",
        fix="use the config and the weights of one and the same model",
        code="LG1304",
    )
