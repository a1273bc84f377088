"""Systems that exist only in this process: a plain function in place of a system of the configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from lossguard.config import SystemConfig
from lossguard.plan import SystemHandle

if TYPE_CHECKING:
    from lossguard.engines.base import Engine, EngineSpec

__all__ = ["SystemHandle", "from_callable"]

DEFAULT_BATCH_SIZE = 64


def from_callable(
    generate: Callable[[list[list[int]], int], list[list[int]]],
    *,
    name: str,
    model: str | None = None,
    expect: Mapping[str, Any] | None = None,
    batch_size: int = DEFAULT_BATCH_SIZE,
    logit_dtype: str = "float32",
) -> SystemHandle:
    """A system for ``Plan(candidates=[...])`` from ``generate(prompts, max_new_tokens) -> replies``.

    ``generate`` gets up to ``batch_size`` prompts as lists of token ids and returns one list per prompt: the new
    token ids, greedily decoded, with the stop id as the last one if it stopped. ``model`` is the target's folder
    if it is not the configuration's; ``expect`` as in the configuration; ``logit_dtype`` is the dtype of the
    logits behind the function, which matters only if this system is the baseline.
    """

    def create(spec: EngineSpec) -> Engine:
        from lossguard.engines.callable_engine import CallableEngine

        return CallableEngine(spec.name, generate, batch_size=batch_size, logit_dtype=logit_dtype)

    config = SystemConfig(name=name, engine="callable", model=model, expect=dict(expect or {}))
    return SystemHandle(config=config, create=create)
