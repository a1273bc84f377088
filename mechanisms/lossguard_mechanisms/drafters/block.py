"""What DFlash2 and DSpark share: one pass over a block of an anchor and masks, on features of the target.

The target's features of all committed tokens, after one linear layer and a norm, are keys and values in every layer;
the block's rows also see each other in both directions. Row k of the block is for the token at its own position
(DFlash: https://arxiv.org/abs/2602.06036).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lossguard_mechanisms.drafters.config import DrafterConfig
from lossguard_mechanisms.drafters.layers import Attend, BlockLayer, rotary_for
from lossguard_mechanisms.drafters.state import DrafterState, StateShape
from lossguard_mechanisms.targets.attention import grouped_attention
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.norms import RootMeanSquareNorm
from lossguard_mechanisms.targets.rotary import Rotary
from lossguard_mechanisms.targets.rows import Rows


class BlockDrafter(nn.Module):
    """Backbone and state of a drafter that fills in blocks; heads are added by its kinds."""

    def __init__(self, config: DrafterConfig, target: Target) -> None:
        super().__init__()
        self.config = config
        self._shared = (target,)  # in a tuple, so that the target's weights are not counted as this module's
        hidden, epsilon = target.config.hidden_size, target.config.rms_norm_eps
        self.feature_proj = nn.Linear(len(config.feature_layers) * hidden, hidden, bias=False)
        self.feature_norm = RootMeanSquareNorm(hidden, epsilon=epsilon, is_centred=False)
        self.layers = nn.ModuleList([BlockLayer(config, hidden, epsilon=epsilon) for _ in range(config.num_layers)])
        self.norm = RootMeanSquareNorm(hidden, epsilon=epsilon, is_centred=False)

    @property
    def target(self) -> Target:
        """Whose embedding and head are read."""
        return self._shared[0]

    @property
    def name(self) -> str:
        """See ``Drafter``."""
        return self.config.name

    @property
    def num_depths(self) -> int:
        """See ``Drafter``."""
        return self.config.num_depths

    @property
    def feature_layers(self) -> tuple[int, ...]:
        """See ``Drafter``."""
        return self.config.feature_layers

    def new_state(
        self, num_slots: int, capacity: int, *, dtype: torch.dtype, device: torch.device | str = "cpu"
    ) -> DrafterState:
        """See ``Drafter``."""
        shape = StateShape(
            num_layers=self.config.num_layers,
            num_key_value_heads=self.config.num_key_value_heads,
            head_dim=self.config.head_dim,
        )
        return DrafterState(shape, num_slots, capacity, dtype=dtype, device=device)

    def extend(self, state: DrafterState, rows: Rows, ids: Tensor, features: Tensor) -> None:
        """See ``Drafter``; the tokens themselves are not read."""
        context = self.context(features)
        rotary = self.rotary(rows.positions, context.dtype)
        for layer in range(self.config.num_layers):
            state.write(layer, rows, *self.context_key_value(layer, context, rotary))

    def context(self, features: Tensor) -> Tensor:
        """[..., L * H] features to [..., H], what every layer makes keys and values of."""
        normed: Tensor = self.feature_norm(self.feature_proj(features))
        return normed

    def context_key_value(self, layer: int, context: Tensor, rotary: Rotary) -> tuple[Tensor, Tensor]:
        """Keys and values [N, key heads, head_dim] of context rows in a layer."""
        chosen = self.layers[layer]
        assert isinstance(chosen, BlockLayer), "the list has nothing else"
        return chosen.attention.key_value(context, rotary)

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> Rotary:
        """Tables for ``positions`` [N]."""
        return rotary_for(self.config, positions, theta=self.target.config.rope_theta, dtype=dtype)

    def block_hidden(self, ids: Tensor, positions: Tensor, block_length: int, attend: Attend) -> Tensor:
        """Rows of blocks, [N] ids and positions, to [N, H] after the last norm: what the head reads."""
        x = self.target.embedding(ids)
        rotary = self.rotary(positions, x.dtype)
        for index, layer in enumerate(self.layers):
            x = layer(x, rotary, block_length, _of_layer(attend, index))
        hidden: Tensor = self.norm(x)
        return hidden

    def draft_hidden(self, state: DrafterState, rows: Rows, anchors: Tensor, num_depths: int) -> Tensor:
        """[B, num_depths, H] of the positions after ``anchors``."""
        length = num_depths + 1
        steps = torch.arange(length, device=anchors.device)
        ids = torch.where(steps == 0, anchors[:, None], self.config.mask_token_id)
        positions = rows.positions[:, None] + steps
        attend = _attend_to_state(state, rows, length)
        hidden = self.block_hidden(ids.flatten(), positions.flatten(), length, attend)
        masks = hidden.view(-1, length, hidden.shape[-1])[:, 1:]
        return masks.contiguous()  # else a product with the head is one per sequence, each reading the whole head


def _of_layer(attend: Attend, layer: int) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    return lambda query, key, value: attend(layer, query, key, value)


def _attend_to_state(state: DrafterState, rows: Rows, length: int) -> Attend:
    """Attention of blocks of ``length`` rows to their sequence's context and to all rows of their block."""
    whole = rows.longest_context + length
    own = rows.past_lengths[:, None] + torch.arange(length, device=rows.positions.device)  # [B, length] places
    sequences = torch.arange(rows.num_sequences, device=own.device)[:, None]
    places = torch.arange(min(whole, state.capacity), device=own.device)
    visible = (places <= own[:, -1:])[:, None].expand(-1, length, -1)  # the context, and all of the block after it

    def attend(layer: int, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        keys, values = state.read(layer, rows, longest=whole)
        query, key, value = (x.unflatten(0, (-1, length)) for x in (query, key, value))
        keys[sequences, own], values[sequences, own] = key, value  # of a copy: nothing drafted enters the state
        return grouped_attention(query, keys, values, visible).flatten(0, 1)

    return attend
