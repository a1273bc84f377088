"""Systems that serve recorded replies, for the engine ``callable``: one object per system.

The replies are real (``fixtures/demo-outputs/MANIFEST.toml`` says from which run); what is judged is how the gate takes
them. What was not recorded is an error, never a made-up reply.
"""

from __future__ import annotations

import functools
import hashlib
import tomllib
from pathlib import Path
from typing import Any

from safetensors.numpy import load

AUDIT_BATCHES = (64, 32, 1)
FOLDER = Path(__file__).resolve().parent.parent.parent / "fixtures" / "demo-outputs"
Ids = list[int]


class NotRecordedError(ValueError):
    """A prompt, a length or a prefix that the recorded run did not have."""


@functools.cache
def manifest() -> dict[str, Any]:
    """What the recorded run was."""
    return tomllib.loads((FOLDER / "MANIFEST.toml").read_text(encoding="utf-8"))


@functools.cache
def recorded() -> dict[str, list[Ids]]:
    """Rows of token ids by name. Raises ValueError if the file is not the manifest's."""
    data = (FOLDER / "replies.safetensors").read_bytes()
    if hashlib.sha256(data).hexdigest() != manifest()["sha256"]:
        raise ValueError(f"{FOLDER / 'replies.safetensors'} is not the file of its manifest")
    tensors = load(data)
    names = [name.removesuffix(".ids") for name in tensors if name.endswith(".ids")]
    return {name: _rows(tensors[f"{name}.ids"].tolist(), tensors[f"{name}.lengths"].tolist()) for name in names}


def _rows(flat: Ids, lengths: list[int]) -> list[Ids]:
    rows, start = [], 0
    for length in lengths:
        rows.append(flat[start : start + length])
        start += length
    return rows


@functools.cache
def _places(part: str) -> dict[tuple[int, ...], int]:
    """Where a prompt is in the calibration or test part."""
    return {tuple(prompt): index for index, prompt in enumerate(recorded()[f"{part}.prompts"])}


class Replay:
    """One recorded system. Stock has calibration replies too, at two batch compositions, and its decode for audits."""

    def __init__(self, system: str) -> None:
        self._system = system

    def __call__(self, prompts: list[Ids], max_new_tokens: int) -> list[Ids]:
        """Recorded replies; greedy, so that a shorter one is the beginning of a longer one. Raises NotRecordedError."""
        kept = manifest()["num_tokens_kept"]
        if max_new_tokens > kept or (max_new_tokens < kept and self._is_changed_afterwards()):
            raise NotRecordedError(f"{max_new_tokens} tokens are asked, {kept} were recorded")
        for part in ("test", "calibration"):
            if all(tuple(prompt) in _places(part) for prompt in prompts):
                indices = [_places(part)[tuple(prompt)] for prompt in prompts]
                return [self._replies(part, indices)[index][:max_new_tokens] for index in indices]
        raise NotRecordedError(f"{len(prompts)} prompts are not all those of the recorded run")

    def _is_changed_afterwards(self) -> bool:
        return "post_processors" in manifest()["systems"][self._system]

    def _replies(self, part: str, indices: list[int]) -> list[Ids]:
        """Calibration prompts in another order than the recorded one were asked in other batches."""
        in_order = indices == list(range(indices[0], indices[0] + len(indices)))
        name = f"{part if part == 'test' or in_order else 'recomposed'}.{self._system}"
        if name not in recorded():
            raise NotRecordedError(f"nothing was recorded as {name}")
        return recorded()[name]

    def fingerprint(self) -> dict[str, Any]:
        """The file, the system in it, and the machine that served it."""
        facts = manifest()
        return {
            "system": self._system,
            "options": facts["systems"][self._system],
            "outputs_sha256": facts["sha256"],
            "host": facts["host"],
        }


class ReplayWithDecode(Replay):
    """Stock: what its own decode gave along the candidates' replies."""

    def forced_decode(self, prompts: list[Ids], replies: list[Ids]) -> list[Ids]:
        """Recorded rows for these prefixes, from batches of this size. Raises NotRecordedError."""
        size = next(size for size in AUDIT_BATCHES if len(prompts) > size // 2)  # the last batch has fewer
        return [self._decoded(size, prompt, reply) for prompt, reply in zip(prompts, replies, strict=True)]

    def _decoded(self, size: int, prompt: Ids, reply: Ids) -> Ids:
        rows = recorded()
        index = _places("test").get(tuple(prompt), len(rows["test.prompts"]))
        for system in manifest()["systems"]:
            served, decoded = (rows.get(name, []) for name in (f"test.{system}", f"decode.{system}.batch-{size}"))
            row = decoded[index] if index < len(decoded) else []
            if len(row) >= len(reply) and served[index][: len(reply)] == reply:
                return row[: len(reply)]
        raise NotRecordedError(f"stock was not decoded in batches of {size} along these {len(reply)} tokens")


stock = ReplayWithDecode("stock")
prompt_lookup = Replay("prompt-lookup")
other_batches = Replay("other-batches")
biased_ids = Replay("biased-ids")
wrong_token = Replay("wrong-token")
cut_replies = Replay("cut-replies")
swapped_ties = Replay("swapped-ties")
no_fault = Replay("stock")  # for the test that a fault which is gone is missed
