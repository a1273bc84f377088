"""Systems that serve recorded replies: for the engine ``callable``, one function per system.

The replies are real (``fixtures/demo-outputs/MANIFEST.toml`` says from which run); what is judged is how the gate
takes them. A prompt that was not recorded is an error, never a made-up reply.
"""

from __future__ import annotations

import functools
import hashlib
import tomllib
from pathlib import Path

from safetensors.numpy import load

FOLDER = Path(__file__).resolve().parent.parent.parent / "fixtures" / "demo-outputs"
PARTS = ("calibration", "test", "audit")
Ids = list[int]


@functools.cache
def replies(system: str) -> dict[tuple[int, ...], Ids]:
    """Recorded replies of a system by prompt ids. Raises ValueError if the file is not the manifest's."""
    facts, data = manifest(), (FOLDER / "replies.safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != facts["sha256"]:
        raise ValueError(f"{FOLDER / 'replies.safetensors'} is not the file of its manifest")
    tensors = load(data)

    def rows(name: str) -> list[Ids]:
        flat, found, start = tensors[f"{name}.ids"].tolist(), [], 0
        for length in tensors[f"{name}.lengths"].tolist():
            found.append(flat[start : start + length])
            start += length
        return found

    table: dict[tuple[int, ...], Ids] = {}
    for part in PARTS:
        if f"{part}.{system}.ids" in tensors:
            table.update(zip(map(tuple, rows(f"{part}.prompts")), rows(f"{part}.{system}"), strict=True))
    if not table:
        raise ValueError(f"no system {system!r} was recorded: {', '.join(facts['systems'])}")
    return table


def manifest() -> dict[str, object]:
    """What the recorded run was."""
    return tomllib.loads((FOLDER / "MANIFEST.toml").read_text(encoding="utf-8"))


def replay(system: str, prompts: list[Ids], max_new_tokens: int) -> list[Ids]:
    """Recorded replies, cut to ``max_new_tokens``. Raises ValueError for a prompt or a length not recorded."""
    longest = int(str(manifest()["max_tokens"]))
    if max_new_tokens > longest:
        raise ValueError(f"{max_new_tokens} tokens are asked, {longest} were recorded")
    table = replies(system)
    unknown = [prompt for prompt in prompts if tuple(prompt) not in table]
    if unknown:
        raise ValueError(f"{len(unknown)} prompts have no recorded reply of {system}, the first is {unknown[0]}")
    return [table[tuple(prompt)][:max_new_tokens] for prompt in prompts]


def stock(prompts: list[Ids], max_new_tokens: int) -> list[Ids]:
    """Stock, with its answers to audits."""
    return replay("stock", prompts, max_new_tokens)


def prompt_lookup(prompts: list[Ids], max_new_tokens: int) -> list[Ids]:
    """Speculation from the prompt's own n-grams: lossless."""
    return replay("prompt-lookup", prompts, max_new_tokens)


def biased_ids(prompts: list[Ids], max_new_tokens: int) -> list[Ids]:
    """Every seventh id gains from position 12 on: lossy."""
    return replay("biased-ids", prompts, max_new_tokens)


def wrong_token(prompts: list[Ids], max_new_tokens: int) -> list[Ids]:
    """One wrong token in some requests: lossy."""
    return replay("wrong-token", prompts, max_new_tokens)


def cut_replies(prompts: list[Ids], max_new_tokens: int) -> list[Ids]:
    """Replies that end early for no reason: lossy."""
    return replay("cut-replies", prompts, max_new_tokens)
