"""The target itself: embedding, layers, last norm, head. It has weights and no memory (see ``mixing``)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import cast

from torch import Tensor, nn
from torch.nn import functional

from lossguard_mechanisms.targets.config import DELTA, TargetConfig
from lossguard_mechanisms.targets.layers import Attention, Delta, GatedMlp
from lossguard_mechanisms.targets.mixing import Mixing
from lossguard_mechanisms.targets.norms import RootMeanSquareNorm
from lossguard_mechanisms.targets.rotary import Rotary, rotary_of


@dataclass(frozen=True, slots=True, kw_only=True)
class StepOutput:
    """What a step gives for its N rows."""

    hidden: Tensor
    """[N, hidden], after the last norm: what the head reads."""
    features: tuple[Tensor, ...]
    """[N, hidden] after each layer that was asked for, in that order: what drafters read."""


class DecoderLayer(nn.Module):
    """One layer: mixing across rows, then the MLP, each on a normed input and added to it."""

    def __init__(self, config: TargetConfig, layer: int) -> None:
        super().__init__()
        self.mixer = (Delta if config.layer_types[layer] == DELTA else Attention)(config, layer)
        self.mlp = GatedMlp(config)
        self.mixer_norm = _norm(config)
        self.mlp_norm = _norm(config)

    def forward(self, x: Tensor, rotary: Rotary, mixing: Mixing) -> Tensor:
        """Rows [N, hidden] to rows [N, hidden]."""
        x = x + self.mixer(self.mixer_norm(x), rotary, mixing)
        added: Tensor = x + self.mlp(self.mlp_norm(x))
        return added


class Target(nn.Module):
    """A decoder of one of the families in ``config.FAMILIES``."""

    def __init__(self, config: TargetConfig) -> None:
        super().__init__()
        self.config = config
        self.embedding = nn.Embedding(config.vocab_size, config.hidden_size)
        self.layers = nn.ModuleList([DecoderLayer(config, layer) for layer in range(config.num_layers)])
        self.norm = _norm(config)
        head = None if config.tie_word_embeddings else nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.head: nn.Module | None = head

    def forward(self, ids: Tensor, positions: Tensor, mixing: Mixing, *, capture: Sequence[int] = ()) -> StepOutput:
        """Run the rows ``ids`` [N] at ``positions`` [N] (both int64).

        ``capture`` names layers, counted from 0, whose outputs are kept. The same row may not be run twice with one
        ``mixing``, which keeps what it saw.
        """
        x = self.embedding(ids)
        rotary = rotary_of(positions, dim=self.config.rotary_dim, theta=self.config.rope_theta, dtype=x.dtype)
        kept: dict[int, Tensor] = {}
        for index, layer in enumerate(self.layers):
            x = layer(x, rotary, mixing)
            if index in capture:
                kept[index] = x
        return StepOutput(hidden=self.norm(x), features=tuple(kept[index] for index in capture))

    @property
    def head_weight(self) -> Tensor:
        """[vocabulary, hidden]; a head that keeps its weights in another form decodes them."""
        return cast("Tensor", (self.embedding if self.head is None else self.head).weight)

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., vocabulary] of rows of ``StepOutput.hidden``, in the dtype of the weights."""
        if self.head is None:
            return functional.linear(hidden, self.embedding.weight)
        logits: Tensor = self.head(hidden)
        return logits


def _norm(config: TargetConfig) -> RootMeanSquareNorm:
    return RootMeanSquareNorm(config.hidden_size, epsilon=config.rms_norm_eps, is_centred=config.family.is_hybrid)
