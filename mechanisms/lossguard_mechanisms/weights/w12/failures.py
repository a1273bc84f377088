"""Errors of this package, each in one place (docs/errors/w12.md)."""

from __future__ import annotations

from pathlib import Path

from lossguard.errors import IntegrityError, StorageError, UsageError


def wrong_dtype(dtype: str) -> UsageError:
    """Weights that are not bfloat16."""
    return UsageError(
        f"the weights are {dtype}; W12 holds bfloat16",
        why="any cast would change weights, and the format promises that every bit is kept",
        fix="give bfloat16 weights; whether a cast of your own is acceptable is for you to decide and to test",
        code="LG1201",
    )


def unsupported_shape(shape: tuple[int, ...], problem: str) -> UsageError:
    """A shape that is no matrix that the format can hold."""
    return UsageError(
        f"a tensor of shape {list(shape)} cannot be held in W12: {problem}",
        why="weights are packed in tiles of a matrix, and an escape keeps its column in 24 bits",
        fix="keep such a tensor as it is; convert does so by itself and says why",
        code="LG1202",
    )


def unreadable(path: Path, problem: str) -> IntegrityError:
    """A safetensors file or a JSON file that cannot be read."""
    return IntegrityError(
        f"{path} cannot be read: {problem}",
        why="a truncated or damaged file holds other weights than those that were written",
        fix="if it is a model's own file, download it again; if convert wrote it, delete it and run convert again",
        code="LG1203",
    )


def checksum_mismatch(path: Path, what: str) -> IntegrityError:
    """Bytes that are not those that were written."""
    return IntegrityError(
        f"{path}: the checksum of {what} does not match",
        why="its bytes have changed since they were written, so weights would be wrong without a trace",
        fix="delete that file and run convert again: what is intact is kept",
        code="LG1204",
    )


def cannot_write(path: Path, error: OSError) -> StorageError:
    """No space left, or no permission."""
    return StorageError(
        f"{path} cannot be written: {error.strerror or error}",
        why="the conversion is not complete; the source is untouched and finished shards are kept",
        fix="make room (three quarters of the model's size) or choose another folder, and run the same command again",
        code="LG1205",
    )


def nothing_to_convert(folder: Path, found: str) -> UsageError:
    """No bf16 matrix at all."""
    return UsageError(
        f"{folder} holds no bfloat16 matrix that W12 makes smaller (found: {found})",
        why="the result would be a mere copy under another name",
        fix="give a model whose weights are bfloat16",
        code="LG1206",
    )


def unusable_source(folder: Path, problem: str) -> UsageError:
    """A folder that is no complete, unquantized model in safetensors."""
    return UsageError(
        f"{folder} cannot be converted: {problem}",
        why="only a complete model in safetensors can be converted and compared bit for bit",
        fix="give a folder as save_pretrained writes it: config.json and all *.safetensors, not quantized",
        code="LG1207",
    )


def unusable_target(folder: Path, problem: str) -> UsageError:
    """A folder that may not be written to."""
    return UsageError(
        f"{folder} cannot take the conversion: {problem}",
        why="convert never touches its source and never overwrites what it has not written itself",
        fix="choose an empty or new folder outside the model, or the folder of an interrupted conversion of it",
        code="LG1208",
    )


def not_understood(path: Path, problem: str) -> IntegrityError:
    """Metadata that this version cannot read."""
    return IntegrityError(
        f"{path} is not a W12 file that this version reads: {problem}",
        why="guessing at a format could give wrong weights",
        fix="update lossguard if the file is newer; convert the model again if it is damaged",
        code="LG1209",
    )


def missing_package(name: str) -> UsageError:
    """torch or transformers is not installed."""
    extra = "transformers" if name == "transformers" else "w12"
    return UsageError(
        f"the package {name!r} is not installed",
        why="weights are encoded and decoded with torch, and models are loaded with transformers",
        fix=f"pip install 'lossguard[{extra}]'",
        code="LG1210",
    )


def other_source(folder: Path, name: str) -> UsageError:
    """The folder holds the conversion of other weights."""
    return UsageError(
        f"{folder} holds a conversion of another {name} than the model has now",
        why="a model of mixed shards would be neither the old nor the new one",
        fix="choose a new folder, or delete this one",
        code="LG1211",
    )


def model_differs(name: str) -> IntegrityError:
    """A loaded model does not hold the weights of the file."""
    return IntegrityError(
        f"the model holds other values at {name} than the W12 file",
        why="its layers would be replaced by weights that the model never had",
        fix="load the model in bfloat16, and without options that change weights",
        code="LG1212",
    )


def unknown_architecture(folder: Path, names: tuple[str, ...]) -> UsageError:
    """A config without an architecture that transformers has."""
    return UsageError(
        f"the config of {folder} names the architectures {list(names)}, and transformers has no such class",
        why="a model of another class could take the same weights and compute something else",
        fix="name one of transformers' own classes as the first of architectures; remote code is not run",
        code="LG1213",
    )
