"""From folders and names on a command line to what ``record`` takes: requests, hashes, a target with its drafter."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from lossguard.file_hashes import HashCache, combined_sha256
from lossguard.prompts.base import Split
from lossguard.prompts.loading import load_prompt_set
from lossguard.prompts.render import build_requests, load_tokenizer, stop_ids_of
from lossguard.records import Request, SamplingParams
from lossguard_mechanisms.replay.failures import unusable_replies


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which prompts get how long replies."""

    sets: tuple[str, ...]
    num_requests: int
    max_tokens: int
    temperature: float
    seed: int


def requests_for(target: Path, wanted: Wanted, *, longest: int) -> tuple[tuple[Request, ...], tuple[str, ...]]:
    """Requests of the test split of prompt sets, and what was decided about them.

    ``longest`` is the target's context: prompts that do not fit it with their reply are left out. Raises UsageError
    LG1610 if none is left, and those of the prompt sets and the tokenizer.
    """
    tokenizer = load_tokenizer(target)
    prompts = load_prompt_set(
        wanted.sets,
        tokenizer=tokenizer,
        seed=wanted.seed,
        num_calibration=0,
        num_test=wanted.num_requests,
        folder=Path(),
    )
    sampling = SamplingParams(max_tokens=wanted.max_tokens, temperature=wanted.temperature, seed=wanted.seed)
    made = build_requests(prompts.split(Split.TEST), tokenizer, sampling, stop_ids=stop_ids_of(target))
    kept = tuple(request for request in made if len(request.prompt_ids) + wanted.max_tokens <= longest)
    if not kept:
        raise unusable_replies(f"no prompt fits a context of {longest} with a reply of {wanted.max_tokens} tokens")
    left_out = len(made) - len(kept)
    note = f"{left_out} of {len(made)} prompts left out: longer than the context of {longest} with their reply"
    return kept, (note,) if left_out else ()


def weights_sha256(folder: Path) -> str:
    """One hash over ``config.json`` and all weight files of a model folder, by name and content."""
    cache = HashCache.default()
    paths: Sequence[Path] = [*sorted(folder.glob("*.safetensors")), folder / "config.json"]
    return combined_sha256(f"{path.name} {cache.sha256(path)}" for path in paths)
