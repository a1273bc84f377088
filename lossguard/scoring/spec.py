"""What the torch scorer is asked for, and how the options of the config become that."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lossguard.errors import UsageError, near_miss

DTYPES: Final = ("auto", "bfloat16", "float16", "float32")
CONVENTION_NAMES: Final = ("transformers", "vllm", "sglang", "llamacpp")
DEFAULT_CONVENTION: Final = "transformers"


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchScorerSpec:
    """Everything that the torch scorer may be told.

    ``token_budget`` bounds the padded tokens of one forward pass (None: chosen by device, with the reason in the
    fingerprint). ``threads`` sets torch's intra-op threads of this process (None: leave them). ``device_map`` is
    handed to transformers and takes the place of ``device``. ``convention`` names the engine whose way of applying
    penalties, biases and masks is replayed (``replayed_parameters.CONVENTIONS``).
    """

    model_path: str
    device: str = "auto"
    dtype: str = "auto"
    threads: int | None = None
    token_budget: int | None = None
    share_prefixes: bool = True
    top_k: int = 5
    device_map: str | Mapping[str, Any] | None = None
    convention: str = DEFAULT_CONVENTION

    def __post_init__(self) -> None:
        if self.dtype not in DTYPES:
            raise _refused(f"dtype {self.dtype!r}", near_miss(self.dtype, DTYPES))
        if self.convention not in CONVENTION_NAMES:
            raise _refused(f"convention {self.convention!r}", near_miss(self.convention, CONVENTION_NAMES))
        if not (self.device in ("auto", "cpu", "cuda") or self.device.startswith("cuda:")):
            raise _refused(f"device {self.device!r}", near_miss(self.device, ("auto", "cpu", "cuda", "cuda:0")))
        if self.top_k < 2:
            raise _refused(f"top_k {self.top_k}", "The checks need the two best tokens: use 2 or more.")
        if self.token_budget is not None and self.token_budget < 1:
            raise _refused(f"token_budget {self.token_budget}", "Use a positive number of tokens.")
        if self.threads is not None and self.threads < 1:
            raise _refused(f"threads {self.threads}", "Use a positive number of threads.")


_OPTION_TYPES: Final[dict[str, tuple[type, ...]]] = {
    "device": (str,),
    "dtype": (str,),
    "threads": (int,),
    "token_budget": (int,),
    "share_prefixes": (bool,),
    "top_k": (int,),
    "device_map": (str, dict),
    "convention": (str,),
}


def spec_from_options(model_path: str, options: Mapping[str, Any]) -> TorchScorerSpec:
    """The spec for the scorer's entry in the config. Raises UsageError for an unknown or ill-typed option."""
    known = {field.name for field in dataclasses.fields(TorchScorerSpec)} - {"model_path"}
    for name, value in options.items():
        if name not in known:
            raise _refused(f"option {name!r}", near_miss(name, known))
        allowed = _OPTION_TYPES[name]
        if not isinstance(value, allowed) or (isinstance(value, bool) and bool not in allowed):
            expected = " or ".join(kind.__name__ for kind in allowed)
            raise _refused(f"{name} = {value!r}", f"It is a {type(value).__name__}; use a {expected}.")
    return TorchScorerSpec(model_path=model_path, **options)


def _refused(found: str, fix: str) -> UsageError:
    return UsageError(
        f"the torch scorer does not take {found}",
        why="an option that is ignored would leave you with other scores than you asked for",
        fix=fix,
        code="LG0501",
    )
