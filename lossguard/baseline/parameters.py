"""What must be equal for a record to stand for a live run of stock, and the file name that follows from it."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from typing import Any

from lossguard.baseline.problems import bad_name
from lossguard.config import SYSTEM_NAME
from lossguard.plan import Plan

SUFFIX = ".safetensors"
ANY_CLAIM = "*"  # a record that stands for every claim with its parameters that has none of its own
_SLUG_LENGTH = 60
_HASH_LENGTH = 12
_MISSING = object()


def claim_parameters(plan: Plan) -> dict[str, Any]:
    """The parameters of a claim, as JSON values: what decides which requests stock answers, and how.

    Model, the baseline's name, engine and options, the scorer, sizes (not the budget's name), seed, temperature,
    repeats, prompt sets and their seed. Candidates are no part of it. Raises UsageError LG0708 for an option that
    JSON does not have.
    """
    stock, sizes = plan.stock, plan.sizes
    scorer, prompts = plan.config.scorer, plan.config.prompts
    return plain_parameters(
        {
            "model": plan.config.model,
            "baseline": {
                "name": stock.name,
                "engine": stock.engine,
                "model": stock.model,
                "options": dict(stock.options),
            },
            "scorer": {"engine": scorer.engine, "options": dict(scorer.options)},
            "sizes": {
                "num_requests": sizes.num_requests,
                "max_tokens": sizes.max_tokens,
                "num_calibration": sizes.num_calibration,
            },
            "seed": plan.effective_seed,
            "temperature": plan.effective_temperature,
            "repeats": plan.repeats,
            "prompts": {"sets": list(plan.prompt_sets or prompts.sets), "seed": prompts.seed},
            **({"parameters": dict(plan.config.parameters)} if plan.config.parameters else {}),
        }
    )


def plain_parameters(parameters: Mapping[str, Any]) -> dict[str, Any]:
    """The same as a file gives it back: tuples are lists. Raises UsageError LG0708."""
    try:
        plain: dict[str, Any] = json.loads(_canonical(parameters))
    except (TypeError, ValueError) as error:
        raise bad_name(f"the parameters of a claim are no JSON: {error}") from error
    return plain


def record_name(claim: str, parameters: Mapping[str, Any]) -> str:
    """``<slug of the claim>-<12 hex digits>.safetensors``; the hash covers the claim too, since slugs may coincide."""
    if not claim.strip():
        raise bad_name(f"the claim {claim!r} is empty")
    words = "any-claim" if claim == ANY_CLAIM else claim.lower()
    slug = re.sub(r"[^a-z0-9]+", "-", words).strip("-")[:_SLUG_LENGTH] or "claim"
    digest = hashlib.sha256(_canonical([claim, plain_parameters(parameters)]).encode()).hexdigest()
    return f"{slug}-{digest[:_HASH_LENGTH]}{SUFFIX}"


def require_name(name: str) -> str:
    """The name itself, if it can be a folder. Raises UsageError LG0708."""
    if not SYSTEM_NAME.fullmatch(name):
        raise bad_name(f"the baseline name {name!r} cannot be a folder")
    return name


def parameter_differences(recorded: Mapping[str, Any], asked: Mapping[str, Any], prefix: str = "") -> list[str]:
    """Sentences such as ``sizes.max_tokens: recorded 64, asked 256``, in the order of the keys."""
    found: list[str] = []
    for key in sorted(recorded.keys() | asked.keys()):
        ours, theirs = recorded.get(key, _MISSING), asked.get(key, _MISSING)
        if isinstance(ours, Mapping) and isinstance(theirs, Mapping):
            found += parameter_differences(ours, theirs, f"{prefix}{key}.")
        elif ours is _MISSING or theirs is _MISSING or _canonical(ours) != _canonical(theirs):
            found.append(f"{prefix}{key}: recorded {_shown(ours)}, asked {_shown(theirs)}")
    return found


def _shown(value: object) -> str:
    return "nothing" if value is _MISSING else repr(value)


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, allow_nan=False, ensure_ascii=True, separators=(",", ":"))
