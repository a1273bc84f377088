"""What a drafter is made of; width, vocabulary and rotary base are its target's."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from lossguard.errors import UsageError, near_miss
from lossguard_mechanisms.targets.config import TargetConfig

NAMES = ("dflash2", "dspark", "eagle3")
_MANY_LAYERS = 24
_LARGEST_RANK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class DrafterConfig:
    """Everything that decides a drafter's shapes and arithmetic beside its target."""

    name: str
    num_depths: int  # D; a block has one row more
    feature_layers: tuple[int, ...]
    num_layers: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    mask_token_id: int
    rank: int = 0  # of the candidate selector (DFlash2) or the Markov head (DSpark)
    conv_groups: int = 0  # of the dynamic convolution (DFlash2); 0: none

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit each other (LG1401)."""
        problems = list(_problems(self))
        if problems:
            raise _unsupported("; ".join(problems))


def config_for(name: str, target: TargetConfig, *, num_depths: int = 7) -> DrafterConfig:
    """The sizes that this repository trains and times: a block of 8 unless told, layers like the target's.

    For a target of 24 layers or more they are the released drafters': five layers, and features of five layers from the
    second to the third from the end (EAGLE-3: of three). Below that three layers, and features after the second layer,
    the middle one and the last. Raises UsageError LG1401 for another name.
    """
    if name not in NAMES:
        raise _unsupported(f"drafter {name!r}. {near_miss(name, NAMES)}")
    num_block_layers = 5 if target.num_layers >= _MANY_LAYERS else 3
    return DrafterConfig(
        name=name,
        num_depths=num_depths,
        feature_layers=_feature_layers(name, target.num_layers),
        num_layers=1 if name == "eagle3" else num_block_layers,
        intermediate_size=target.intermediate_size,
        num_attention_heads=target.num_attention_heads,
        num_key_value_heads=target.num_key_value_heads,
        head_dim=target.head_dim,
        mask_token_id=min(2, target.vocab_size - 1),
        rank=0 if name == "eagle3" else min(_LARGEST_RANK, max(4, target.hidden_size // 4)),
        conv_groups=_most_groups(target.hidden_size) if name == "dflash2" else 0,
    )


def config_from_json(data: Mapping[str, Any]) -> DrafterConfig:
    """Read what ``config_to_json`` wrote. Raises UsageError LG1401 for missing, unknown or unfit fields."""
    known = {field.name for field in fields(DrafterConfig)}
    wrong = sorted(known.symmetric_difference(data))
    if wrong:
        raise _unsupported(f"a drafter's config with {', '.join(wrong)} missing or unknown")
    try:
        numbers = {name: int(data[name]) for name in known - {"name", "feature_layers"}}
        layers = tuple(int(layer) for layer in data["feature_layers"])
    except (TypeError, ValueError) as error:
        raise _unsupported(f"a drafter's config with values of another kind: {error}") from error
    return DrafterConfig(name=str(data["name"]), feature_layers=layers, **numbers)


def config_to_json(config: DrafterConfig) -> dict[str, Any]:
    """All fields, as JSON has them."""
    return asdict(config) | {"feature_layers": list(config.feature_layers)}


def _feature_layers(name: str, num_layers: int) -> tuple[int, ...]:
    last = num_layers - 1
    if num_layers < _MANY_LAYERS:
        return tuple(sorted({min(1, last), num_layers // 2, last}))
    if name == "eagle3":
        return 2, num_layers // 2, num_layers - 3
    return tuple(1 + round(place * (num_layers - 4) / 4) for place in range(5))


def _most_groups(hidden: int) -> int:
    """At most 12 that divide the width."""
    return next(groups for groups in range(12, 0, -1) if hidden % groups == 0)


def _problems(config: DrafterConfig) -> list[str]:
    problems = [] if config.name in NAMES else [f"drafter {config.name!r}. {near_miss(config.name, NAMES)}"]
    if not config.feature_layers or min(config.feature_layers) < 0:
        problems.append(f"feature layers {config.feature_layers}")
    if min(config.num_depths, config.num_layers, config.intermediate_size, config.head_dim // 2) < 1:
        problems.append("a size under one")
    if config.num_key_value_heads < 1 or config.num_attention_heads % config.num_key_value_heads:
        problems.append(f"{config.num_attention_heads} heads over {config.num_key_value_heads} key heads")
    if (config.rank > 0) != (config.name != "eagle3"):
        problems.append(f"{config.name} with rank {config.rank}")
    if (config.conv_groups > 0) != (config.name == "dflash2"):
        problems.append(f"{config.name} with {config.conv_groups} convolution groups")
    if config.name == "eagle3" and config.num_layers != 1:
        problems.append(f"EAGLE-3 with {config.num_layers} layers")
    return problems


def _unsupported(problem: str) -> UsageError:
    return UsageError(
        f"this drafter is not supported: {problem}",
        why="a drafter of another shape than its weights drafts noise",
        fix="use a folder that the training stages wrote, or one of the names " + ", ".join(NAMES),
        code="LG1401",
    )
