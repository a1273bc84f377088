"""What a target is made of, read from and written as a Hugging Face ``config.json``.

What the code cannot compute is refused here, never ignored: experts, biases, scaled rotary positions, windows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lossguard.errors import UsageError, near_miss

ATTENTION = "full_attention"
DELTA = "linear_attention"


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """What sets one model type apart from another."""

    architecture: str
    has_query_key_norm: bool
    is_hybrid: bool
    """Delta layers, gated attention, norms whose weight is added to one, partial rotary positions."""


FAMILIES: Mapping[str, Family] = {
    "llama": Family(architecture="LlamaForCausalLM", has_query_key_norm=False, is_hybrid=False),
    "qwen3": Family(architecture="Qwen3ForCausalLM", has_query_key_norm=True, is_hybrid=False),
    "qwen3_next": Family(architecture="Qwen3NextForCausalLM", has_query_key_norm=True, is_hybrid=True),
    "qwen3_5_text": Family(architecture="Qwen3_5ForCausalLM", has_query_key_norm=True, is_hybrid=True),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class DeltaShape:
    """Sizes of a Gated DeltaNet layer; each key head serves ``num_value_heads // num_key_heads`` value heads."""

    num_key_heads: int
    num_value_heads: int
    key_dim: int
    value_dim: int
    conv_width: int

    @property
    def key_channels(self) -> int:
        """Channels of all keys, and of all queries."""
        return self.num_key_heads * self.key_dim

    @property
    def value_channels(self) -> int:
        """Channels of all values."""
        return self.num_value_heads * self.value_dim

    @property
    def conv_channels(self) -> int:
        """Channels that the convolution sees: queries, keys, values."""
        return 2 * self.key_channels + self.value_channels


@dataclass(frozen=True, slots=True, kw_only=True)
class TargetConfig:
    """Everything that decides a target's shapes and arithmetic."""

    model_type: str
    vocab_size: int
    hidden_size: int
    intermediate_size: int
    layer_types: tuple[str, ...]
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rotary_dim: int
    rope_theta: float
    rms_norm_eps: float
    max_position_embeddings: int
    tie_word_embeddings: bool
    delta: DeltaShape | None
    eos_token_ids: tuple[int, ...] = ()
    pad_token_id: int | None = None

    def __post_init__(self) -> None:
        """Refuse sizes that do not fit each other (LG1301)."""
        problems = list(_problems(self))
        if problems:
            raise _unsupported("; ".join(problems))

    @property
    def family(self) -> Family:
        """What sets its model type apart."""
        return FAMILIES[self.model_type]

    @property
    def num_layers(self) -> int:
        """Layers of both kinds."""
        return len(self.layer_types)

    @property
    def delta_layers(self) -> tuple[int, ...]:
        """Indices of the layers with a recurrent state."""
        return tuple(index for index, kind in enumerate(self.layer_types) if kind == DELTA)

    @property
    def attention_layers(self) -> tuple[int, ...]:
        """Indices of the layers with keys and values."""
        return tuple(index for index, kind in enumerate(self.layer_types) if kind == ATTENTION)


def config_from_hf(data: Mapping[str, Any]) -> TargetConfig:
    """Read a Hugging Face config (or its ``text_config``). Raises UsageError LG1301 for what is not supported."""
    if data.get("model_type") == "qwen3_5" and isinstance(data.get("text_config"), Mapping):
        inner = dict(data["text_config"])
        inner.setdefault("tie_word_embeddings", data.get("tie_word_embeddings", False))
        data = inner
    model_type = str(data.get("model_type"))
    if model_type not in FAMILIES:
        raise _unsupported(f"model_type {model_type!r}. {near_miss(model_type, FAMILIES)}")
    _refuse_unsupported(data)
    try:
        return _read(data, model_type)
    except KeyError as error:
        raise _unsupported(f"a config without {error.args[0]!r}") from error


def config_to_hf(config: TargetConfig, *, dtype: str) -> dict[str, Any]:
    """The config as transformers reads it; ``dtype`` is that of the weights, e.g. ``bfloat16``."""
    rope: dict[str, Any] = {"rope_type": "default", "rope_theta": config.rope_theta}
    if config.family.is_hybrid:
        rope["partial_rotary_factor"] = config.rotary_dim / config.head_dim
    data: dict[str, Any] = {
        "architectures": [config.family.architecture],
        "model_type": config.model_type,
        "vocab_size": config.vocab_size,
        "hidden_size": config.hidden_size,
        "intermediate_size": config.intermediate_size,
        "num_hidden_layers": config.num_layers,
        "num_attention_heads": config.num_attention_heads,
        "num_key_value_heads": config.num_key_value_heads,
        "head_dim": config.head_dim,
        "hidden_act": "silu",
        "rms_norm_eps": config.rms_norm_eps,
        "max_position_embeddings": config.max_position_embeddings,
        "tie_word_embeddings": config.tie_word_embeddings,
        "attention_bias": False,
        "rope_parameters": rope,
        "eos_token_id": list(config.eos_token_ids),
        "pad_token_id": config.pad_token_id,
        "dtype": dtype,
    }
    return data | _delta_to_hf(config)


def _delta_to_hf(config: TargetConfig) -> dict[str, Any]:
    if config.delta is None:
        return {}
    data: dict[str, Any] = {
        "layer_types": list(config.layer_types),
        "linear_num_key_heads": config.delta.num_key_heads,
        "linear_num_value_heads": config.delta.num_value_heads,
        "linear_key_head_dim": config.delta.key_dim,
        "linear_value_head_dim": config.delta.value_dim,
        "linear_conv_kernel_dim": config.delta.conv_width,
    }
    if config.model_type == "qwen3_next":
        data |= {"num_experts": 0, "mlp_only_layers": []}
    return data


def _read(data: Mapping[str, Any], model_type: str) -> TargetConfig:
    is_hybrid = FAMILIES[model_type].is_hybrid
    rope = data.get("rope_parameters") or {}
    num_heads = int(data["num_attention_heads"])
    head_dim = int(data.get("head_dim") or data["hidden_size"] // num_heads)
    factor = rope.get("partial_rotary_factor", data.get("partial_rotary_factor", 0.25 if is_hybrid else 1.0))
    stops = data.get("eos_token_id")
    return TargetConfig(
        model_type=model_type,
        vocab_size=int(data["vocab_size"]),
        hidden_size=int(data["hidden_size"]),
        intermediate_size=int(data["intermediate_size"]),
        layer_types=_layer_types(data, is_hybrid=is_hybrid),
        num_attention_heads=num_heads,
        num_key_value_heads=int(data.get("num_key_value_heads") or num_heads),
        head_dim=head_dim,
        rotary_dim=int(head_dim * float(factor)),
        rope_theta=float(rope["rope_theta"] if "rope_theta" in rope else data["rope_theta"]),
        rms_norm_eps=float(data["rms_norm_eps"]),
        max_position_embeddings=int(data["max_position_embeddings"]),
        tie_word_embeddings=bool(data.get("tie_word_embeddings", False)),
        delta=_delta_shape(data) if is_hybrid else None,
        eos_token_ids=tuple(stops) if isinstance(stops, (list, tuple)) else () if stops is None else (int(stops),),
        pad_token_id=data.get("pad_token_id"),
    )


def _layer_types(data: Mapping[str, Any], *, is_hybrid: bool) -> tuple[str, ...]:
    """As given; else every fourth layer attends, as the hybrid families have it."""
    given = data.get("layer_types")
    if given is not None:
        return tuple(given)
    interval = int(data.get("full_attention_interval", 4)) if is_hybrid else 1
    return tuple(DELTA if (index + 1) % interval else ATTENTION for index in range(int(data["num_hidden_layers"])))


def _delta_shape(data: Mapping[str, Any]) -> DeltaShape:
    return DeltaShape(
        num_key_heads=int(data["linear_num_key_heads"]),
        num_value_heads=int(data["linear_num_value_heads"]),
        key_dim=int(data["linear_key_head_dim"]),
        value_dim=int(data["linear_value_head_dim"]),
        conv_width=int(data["linear_conv_kernel_dim"]),
    )


def _refuse_unsupported(data: Mapping[str, Any]) -> None:
    rope = data.get("rope_parameters") or data.get("rope_scaling") or {}
    kind = rope.get("rope_type", rope.get("type", "default"))
    wrong = [
        f"{name} = {data[name]!r}"
        for name, plain in (("hidden_act", "silu"), ("attention_bias", False), ("mlp_bias", False))
        if data.get(name, plain) != plain
    ]
    if kind != "default":
        wrong.append(f"rotary positions of type {kind!r}")
    if data.get("use_sliding_window"):
        wrong.append("sliding windows")
    if data.get("num_experts") and set(data.get("mlp_only_layers") or ()) != set(range(data["num_hidden_layers"])):
        wrong.append(f"{data['num_experts']} experts")
    if wrong:
        raise _unsupported(", ".join(wrong))


def _problems(config: TargetConfig) -> list[str]:
    problems = [f"layer type {kind!r}" for kind in sorted(set(config.layer_types) - {ATTENTION, DELTA})]
    if not config.layer_types:
        problems.append("no layers")
    if config.num_attention_heads % config.num_key_value_heads:
        problems.append(f"{config.num_attention_heads} heads over {config.num_key_value_heads} key heads")
    if config.rotary_dim % 2 or not 0 < config.rotary_dim <= config.head_dim:
        problems.append(f"{config.rotary_dim} rotary dimensions of {config.head_dim}")
    if config.rotary_dim != config.head_dim and not config.family.is_hybrid:
        problems.append(f"{config.rotary_dim} rotary dimensions of {config.head_dim} in a {config.model_type} model")
    if config.delta is None and config.delta_layers:
        problems.append("delta layers without their sizes")
    if config.delta is not None and config.delta.num_value_heads % config.delta.num_key_heads:
        problems.append(f"{config.delta.num_value_heads} value heads over {config.delta.num_key_heads} key heads")
    return problems


def _unsupported(problem: str) -> UsageError:
    return UsageError(
        f"the target's config asks for what is not supported: {problem}",
        why="a part that is left out would change every token without a trace",
        fix="use a Llama, Qwen3, dense Qwen3-Next or Qwen3.5 text model without biases, windows or scaled positions",
        code="LG1301",
    )
