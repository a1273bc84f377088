"""The options of a scorer on a server: those of a server system that mean something here, and two of its own."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from lossguard.engines.base import EngineSpec
from lossguard.engines.model_facts import ModelFacts, read_model_facts
from lossguard.engines.servers.options import NAMES, ServerOptions, read_options
from lossguard.errors import UsageError, near_miss
from lossguard.scoring.servers.problems import bad_option

SYSTEM: Final = "scorer"
OWN: Final = ("top_k", "rounded_head")
OF_SERVING_ONLY: Final = ("stagger_seconds", "stream", "metrics", "logprobs")
SHARED: Final = tuple(name for name in NAMES if name not in OF_SERVING_ONLY)
MOST_TOP: Final = 20  # what servers give unless they are told otherwise


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerScorerOptions:
    """What the table ``[scorer]`` says, checked."""

    model_path: str
    model: ModelFacts
    server: ServerOptions
    top_k: int
    rounded_head: bool  # whether logits of a rounded head are accepted


def read_scorer_options(model_path: str, options: Mapping[str, Any]) -> ServerScorerOptions:
    """Check and type the options. Raises UsageError LG0513, and LG0206 for a folder that is no model."""
    for name in options:
        if name not in SHARED and name not in OWN:
            raise bad_option(f"has an unknown option {name!r}. {near_miss(name, (*SHARED, *OWN))}")
    top_k, rounded = options.get("top_k", MOST_TOP), options.get("rounded_head", False)
    if isinstance(top_k, bool) or not isinstance(top_k, int) or not 2 <= top_k <= MOST_TOP:
        raise bad_option(f"has top_k = {top_k!r}, which should be a whole number from 2 to {MOST_TOP}")
    if not isinstance(rounded, bool):
        raise bad_option(f"has rounded_head = {rounded!r}, which should be true or false")
    model = read_model_facts(model_path)
    shared = {name: value for name, value in options.items() if name not in OWN}
    try:
        server = read_options(EngineSpec(name=SYSTEM, model_path=model_path, options=shared), model_dtype=model.dtype)
    except UsageError as error:
        if error.code != "LG0204":
            raise
        raise bad_option(error.found.removeprefix(f"the system {SYSTEM!r} ")) from error
    return ServerScorerOptions(model_path=model_path, model=model, server=server, top_k=top_k, rounded_head=rounded)
