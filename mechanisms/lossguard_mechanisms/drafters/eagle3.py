"""EAGLE-3: one decoder layer that goes token by token on its own hidden state.

The row of a token reads the token's embedding and the hidden state before it: for committed tokens the target's
features (low, middle, high, through one linear layer), for drafted ones the layer's own output. Keys and values of
committed rows therefore need no attention (https://arxiv.org/abs/2503.01840).
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn

from lossguard_mechanisms.drafters.candidates import best_candidates, log_probabilities
from lossguard_mechanisms.drafters.config import DrafterConfig
from lossguard_mechanisms.drafters.lattice import Lattice
from lossguard_mechanisms.drafters.layers import DrafterAttention, DrafterMlp, rotary_for
from lossguard_mechanisms.drafters.state import DrafterState, StateShape
from lossguard_mechanisms.targets.attention import grouped_attention
from lossguard_mechanisms.targets.decoder import Target
from lossguard_mechanisms.targets.norms import RootMeanSquareNorm
from lossguard_mechanisms.targets.rotary import Rotary
from lossguard_mechanisms.targets.rows import Rows


class Eagle3(nn.Module):
    """See the module; a ``base.Drafter``."""

    def __init__(self, config: DrafterConfig, target: Target) -> None:
        super().__init__()
        self.config = config
        self._shared = (target,)  # in a tuple, so that the target's weights are not counted as this module's
        hidden, epsilon = target.config.hidden_size, target.config.rms_norm_eps
        self.feature_proj = nn.Linear(len(config.feature_layers) * hidden, hidden, bias=False)
        self.embedding_norm = RootMeanSquareNorm(hidden, epsilon=epsilon, is_centred=False)
        self.hidden_norm = RootMeanSquareNorm(hidden, epsilon=epsilon, is_centred=False)
        self.attention = DrafterAttention(config, input_size=2 * hidden, output_size=hidden, epsilon=epsilon)
        self.mlp_norm = RootMeanSquareNorm(hidden, epsilon=epsilon, is_centred=False)
        self.mlp = DrafterMlp(hidden, config.intermediate_size)
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
        """See ``Drafter``; the last committed token's features wait for the token after it."""
        shape = StateShape(
            num_layers=1,
            num_key_value_heads=self.config.num_key_value_heads,
            head_dim=self.config.head_dim,
            pending_size=self.target.config.hidden_size,
        )
        return DrafterState(shape, num_slots, capacity, dtype=dtype, device=device)

    def extend(self, state: DrafterState, rows: Rows, ids: Tensor, features: Tensor) -> None:
        """See ``Drafter``."""
        fused = rows.pad(self.feature_proj(features))  # [B, longest, H]
        before = torch.cat((self._pending(state, rows)[:, None].to(fused.dtype), fused[:, :-1]), dim=1)
        inputs = self.inputs(ids, rows.unpad(before))
        rotary = self.rotary(rows.positions, inputs.dtype)
        state.write(0, rows, *self.attention.key_value(inputs, rotary))
        last = fused[torch.arange(fused.shape[0], device=fused.device), rows.lengths - 1]
        state.pending.index_copy_(0, rows.slots, last.to(state.pending.dtype))

    def draft(self, state: DrafterState, rows: Rows, anchors: Tensor, *, num_depths: int | None = None) -> Lattice:
        """See ``base.Drafter``. Candidates of a depth are those along the drafter's own chain."""
        attend = _AttendToState(state, rows)
        ids, hidden = anchors, self._pending(state, rows)
        found = []
        for depth in range(num_depths or self.num_depths):
            hidden = self.step(ids, hidden, rows.positions + depth, attend)
            found.append(best_candidates(log_probabilities(self.logits(hidden))))
            ids = found[-1][0][:, 0]
        all_ids, log_probs = (torch.stack(parts, dim=1) for parts in zip(*found, strict=True))
        return Lattice(ids=all_ids, log_probs=log_probs, chain=all_ids[..., 0], edges=None, confidence=None)

    def inputs(self, ids: Tensor, hidden: Tensor) -> Tensor:
        """Token ids [N] and the hidden state [N, H] before each, to what attention reads, [N, 2 H]."""
        embedded = self.target.embedding(ids)
        return torch.cat((self.embedding_norm(embedded), self.hidden_norm(hidden)), dim=-1)

    def step(
        self, ids: Tensor, hidden: Tensor, positions: Tensor, attend: Callable[[Tensor, Tensor, Tensor], Tensor]
    ) -> Tensor:
        """Rows [N] and the hidden state [N, H] before each, to the hidden state [N, H] after each."""
        inputs = self.inputs(ids, hidden)
        x = hidden + self.attention(inputs, self.rotary(positions, inputs.dtype), attend)
        added: Tensor = x + self.mlp(self.mlp_norm(x))
        return added

    def logits(self, hidden: Tensor) -> Tensor:
        """Logits [..., V] of the token after each row."""
        return self.target.logits(self.norm(hidden))

    def rotary(self, positions: Tensor, dtype: torch.dtype) -> Rotary:
        """Tables for ``positions`` [N]."""
        return rotary_for(self.config, positions, theta=self.target.config.rope_theta, dtype=dtype)

    def _pending(self, state: DrafterState, rows: Rows) -> Tensor:
        """[B, H] what the token before left; zeros before the first."""
        return state.pending[rows.slots] * (rows.past_lengths > 0)[:, None]


class _AttendToState:
    """Attention of one row per sequence to its context and to the rows that were drafted before it."""

    def __init__(self, state: DrafterState, rows: Rows) -> None:
        self._keys, self._values = (x for x in state.read(0, rows))
        places = torch.arange(rows.longest_context, device=rows.positions.device)
        self._visible = places < rows.past_lengths[:, None]  # [B, S]

    def __call__(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """As ``layers.Attend`` without the layer."""
        self._keys = torch.cat((self._keys, key[:, None]), dim=1)
        self._values = torch.cat((self._values, value[:, None]), dim=1)
        self._visible = torch.cat((self._visible, self._visible.new_ones((query.shape[0], 1))), dim=1)
        return grouped_attention(query[:, None], self._keys, self._values, self._visible[:, None])[:, 0]
