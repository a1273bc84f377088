"""How a request names a grammar: ``json:SCHEMA`` or ``regex:PATTERN``, and how each server is told."""

from __future__ import annotations

import json
from typing import Any

from lossguard.errors import UsageError

JSON_SCHEMA, REGEX = "json:", "regex:"


def grammar_parts(grammar: str) -> tuple[str, str]:
    """(prefix, text). Raises UsageError LG0233 for another form, or a schema that is not JSON."""
    for prefix in (JSON_SCHEMA, REGEX):
        if grammar.startswith(prefix):
            text = grammar.removeprefix(prefix)
            if prefix == JSON_SCHEMA:
                _require_json(text)
            return prefix, text
    raise _refused(f"begins with {grammar[:20]!r}")


def structured_outputs(grammar: str | None) -> dict[str, Any]:
    """vLLM's way."""
    if grammar is None:
        return {}
    prefix, text = grammar_parts(grammar)
    kind: dict[str, Any] = {"json": json.loads(text)} if prefix == JSON_SCHEMA else {"regex": text}
    return {"structured_outputs": kind}


def sglang_grammar(grammar: str | None) -> dict[str, Any]:
    """SGLang's way."""
    if grammar is None:
        return {}
    prefix, text = grammar_parts(grammar)
    return {"json_schema": text} if prefix == JSON_SCHEMA else {"regex": text}


def llamacpp_grammar(grammar: str | None) -> dict[str, Any]:
    """llama.cpp's way; it has no regular expressions."""
    if grammar is None:
        return {}
    prefix, text = grammar_parts(grammar)
    if prefix == REGEX:
        raise _refused("is a regular expression, which llama.cpp does not take")
    return {"json_schema": json.loads(text)}


def _require_json(text: str) -> None:
    try:
        json.loads(text)
    except ValueError as error:
        raise _refused(f"is not JSON: {error}") from error


def _refused(found: str) -> UsageError:
    return UsageError(
        f"a request's grammar {found}",
        why="a grammar that a server does not get would be judged as if it had been honoured",
        fix='write it as "json:" and a JSON schema, or "regex:" and a pattern, for a server that takes it',
        code="LG0233",
    )
