"""Functions that a configuration names: ``"module:function"``, or a table that gives it arguments.

The transformers engine calls them inside generation (logits processors, and state edits around every forward pass)
and on finished replies (post processors). lossguard's own use is planting faults; a user's is trying a change before
an engine has it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, cast

from lossguard.engines.options import bad_option
from lossguard.errors import UsageError
from lossguard.records import Request

OWN_PACKAGES = frozenset({"lossguard", "lossguard_mechanisms", "lossguard_suites"})


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchContext:
    """What the factory of a logits processor or of a state edit learns about the batch that is about to be served.

    Row i of the logits answers ``requests[i]``. Column ``prompt_length`` of ``input_ids`` holds the first
    generated token; columns before it are the left-padded prompt.
    """

    requests: tuple[Request, ...]
    prompt_length: int
    stop_ids: tuple[int, ...]
    vocab_size: int
    model_path: str  # folder of the model and its tokenizer


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardCall:
    """One forward pass of a model inside generation, as a state edit sees it.

    ``arguments`` are the pass's own (``input_ids`` [B, T], ``cache``, perhaps ``attention_mask`` and
    ``position_ids``); ``proceed`` runs the next edit, or the model itself, with the arguments it is given, and may be
    called more than once. ``model`` is there to be looked into.
    """

    model: Any
    arguments: Mapping[str, Any]
    proceed: Callable[[Mapping[str, Any]], Any]


StateEdit = Callable[[ForwardCall], Any]
"""What a state-edit factory returns: from a forward pass to its output. The cache may be changed on the way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Extension:
    """A named function and the arguments that the configuration gives it."""

    target: str  # "module:function"
    arguments: Mapping[str, Any] = field(default_factory=dict)

    def load(self) -> Callable[..., Any]:
        """Import the function. Raises UsageError LG0205."""
        module_name, _, attribute = self.target.partition(":")
        try:
            module = import_module(module_name)
        except ImportError as error:
            raise _cannot_load(self.target, f"{module_name} cannot be imported: {error}") from error
        function = getattr(module, attribute, None)
        if not callable(function):
            raise _cannot_load(self.target, f"{module_name} has no function {attribute!r}")
        return cast("Callable[..., Any]", function)

    @property
    def is_ours(self) -> bool:
        """Whether this project's own packages have it: others may change a process that several systems share."""
        return self.target.partition(".")[0].partition(":")[0] in OWN_PACKAGES

    def to_json(self) -> dict[str, Any]:
        """For fingerprints."""
        return {"target": self.target, "arguments": dict(self.arguments)}


def parse_extensions(system: str, key: str, value: Any) -> tuple[Extension, ...]:
    """Read a list of ``"module:function"`` or ``{ factory = "module:function", argument = ... }``.

    Raises UsageError LG0204 for another form.
    """
    if not isinstance(value, (list, tuple)):
        raise bad_option(system, f'has {key} = {value!r}, which should be a list such as ["module:function"]')
    return tuple(_parse_one(system, key, item) for item in value)


def _parse_one(system: str, key: str, item: Any) -> Extension:
    arguments = dict(item) if isinstance(item, Mapping) else {"factory": item}
    target = arguments.pop("factory", None)
    if not isinstance(target, str) or not all(target.partition(":")):
        raise bad_option(system, f"has {item!r} in {key}, which does not name a function as 'module:function'")
    return Extension(target=target, arguments=arguments)


def _cannot_load(target: str, found: str) -> UsageError:
    return UsageError(
        f"{target} cannot be loaded: {found}",
        why="a system without the function that its configuration names would be another system",
        fix="correct the name, or make the module importable (install it, or put its folder on PYTHONPATH)",
        code="LG0205",
    )
