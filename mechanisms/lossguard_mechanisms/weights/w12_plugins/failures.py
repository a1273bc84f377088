"""Errors of the plug-ins, each in one place (docs/errors/w12.md)."""

from __future__ import annotations

from lossguard.errors import UsageError


def container_in_transformers() -> UsageError:
    """``from_pretrained`` of a folder that convert has written."""
    return UsageError(
        "the folder holds a model that is W12 already, and from_pretrained reads ordinary weights",
        why="its arrays have checksums and sizes of their own, which transformers' loading cannot check",
        fix="load it with lossguard_mechanisms.weights.w12.loader.load_model, or give the original folder",
        code="LG1214",
    )


def not_bfloat16(dtype: str) -> UsageError:
    """A model that is loaded in another type."""
    return UsageError(
        f"the model would be loaded in {dtype}; W12 holds bfloat16",
        why="a cast changes weights, and the format promises that every bit is kept",
        fix="pass dtype=torch.bfloat16, for a model whose weights are bfloat16",
        code="LG1215",
    )


def nothing_converted(left: dict[str, str]) -> UsageError:
    """No layer that W12 can replace."""
    reasons = "; ".join(f"{name}: {reason}" for name, reason in sorted(left.items())[:4]) or "it has no nn.Linear"
    return UsageError(
        f"no layer of the model was converted ({reasons})",
        why="the model would be called W12 and be served as it was",
        fix="load the model as it is, without w12",
        code="LG1216",
    )
