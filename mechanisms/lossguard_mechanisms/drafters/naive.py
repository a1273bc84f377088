"""Slow references: one sequence, row by row and head by head, everything again at every call.

Nothing here is shared with the fast forms but the weights: a difference between the two is a fault of one of them.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from lossguard_mechanisms.drafters.dflash2 import Dflash2
from lossguard_mechanisms.drafters.dspark import Dspark
from lossguard_mechanisms.drafters.eagle3 import Eagle3
from lossguard_mechanisms.drafters.fresh import AnyDrafter
from lossguard_mechanisms.drafters.lattice import TOP_K, Lattice
from lossguard_mechanisms.drafters.layers import BlockLayer, DrafterAttention, DrafterMlp, DynamicConvolution
from lossguard_mechanisms.targets.norms import RootMeanSquareNorm

Rows = list[Tensor]  # one vector each


def naive_lattice(drafter: AnyDrafter, ids: Sequence[int], features: Tensor, *, num_depths: int) -> Lattice:
    """The lattice after ``ids``, whose last one is the anchor; ``features`` [len(ids) - 1, L * H] of all before it.

    In the dtype of the weights, with a batch of one.
    """
    assert len(ids) == len(features) + 1, "the anchor alone has no features"
    if isinstance(drafter, Eagle3):
        return _eagle_lattice(drafter, ids, features, num_depths)
    hidden = _block_hidden(drafter, ids[-1], features, num_depths)
    logits = [_head(drafter) @ row for row in hidden]
    if isinstance(drafter, Dspark):
        return _markov_lattice(drafter, ids[-1], hidden, logits)
    return _selector_lattice(drafter, ids[-1], hidden, logits)


def _selector_lattice(drafter: Dflash2, anchor: int, hidden: Rows, logits: Rows) -> Lattice:
    table = drafter.selector
    chain, edges, found = [], [], []
    before, row = [anchor] * TOP_K, 0
    for h, scores in zip(hidden, logits, strict=True):
        log_probs = scores - scores.exp().sum().log()
        best = log_probs.sort(descending=True, stable=True)
        ids, values = best.indices[:TOP_K].tolist(), best.values[:TOP_K]
        bend = table.hidden_proj.weight @ h
        grid = [
            [values[c] + (table.before.weight[p] * bend * table.after.weight[i]).sum() for c, i in enumerate(ids)]
            for p in before
        ]
        edges.append(torch.tensor(grid, dtype=values.dtype))
        row = int(edges[-1][row].argmax())
        chain.append(ids[row])
        found.append((ids, values))
        before = ids
    return _lattice(found, chain, edges, None)


def _markov_lattice(drafter: Dspark, anchor: int, hidden: Rows, logits: Rows) -> Lattice:
    markov = drafter.markov
    chain, edges, found, confidence = [], [], [], []
    token, before = anchor, [anchor] * TOP_K
    for h, base in zip(hidden, logits, strict=True):
        embedded = markov.before.weight[token]
        weight, bias = markov.confidence_proj.weight[0], markov.confidence_proj.bias[0]
        confidence.append(float(1 / (1 + (-(weight @ torch.cat((h, embedded)) + bias)).exp())))
        scores = base + markov.after.weight @ embedded
        log_total = scores.exp().sum().log()
        best = scores.sort(descending=True, stable=True)
        ids = best.indices[:TOP_K].tolist()
        pairs = [[base[i] - log_total + markov.before.weight[p] @ markov.after.weight[i] for i in ids] for p in before]
        edges.append(torch.tensor(pairs, dtype=base.dtype))
        found.append((ids, best.values[:TOP_K] - log_total))
        token, before = ids[0], ids
        chain.append(token)
    return _lattice(found, chain, edges, confidence)


def _eagle_lattice(drafter: Eagle3, ids: Sequence[int], features: Tensor, num_depths: int) -> Lattice:
    embedding = drafter.target.embedding.weight
    fused = [torch.zeros_like(embedding[0]), *(drafter.feature_proj.weight @ row for row in features)]

    def inputs(token: int, hidden: Tensor) -> Tensor:
        normed = (_norm(embedding[token], drafter.embedding_norm), _norm(hidden, drafter.hidden_norm))
        return torch.cat(normed)

    seen = [inputs(token, hidden) for token, hidden in zip(ids, fused, strict=True)]
    token, hidden = ids[-1], fused[-1]
    chain, found = [], []
    for depth in range(num_depths):
        x = hidden + _attend(drafter, drafter.attention, seen, len(seen) - 1)
        hidden = x + _mlp(drafter.mlp, _norm(x, drafter.mlp_norm))
        scores = _head(drafter) @ _norm(hidden, drafter.norm)
        best = (scores - scores.exp().sum().log()).sort(descending=True, stable=True)
        found.append((best.indices[:TOP_K].tolist(), best.values[:TOP_K]))
        token = found[-1][0][0]
        chain.append(token)
        if depth + 1 < num_depths:
            seen.append(inputs(token, hidden))
    return _lattice(found, chain, None, None)


def _block_hidden(drafter: Dflash2 | Dspark, anchor: int, features: Tensor, num_depths: int) -> Rows:
    context = [_norm(drafter.feature_proj.weight @ row, drafter.feature_norm) for row in features]
    tokens = [anchor, *[drafter.config.mask_token_id] * num_depths]
    rows = [drafter.target.embedding.weight[token] for token in tokens]
    for layer in drafter.layers:
        assert isinstance(layer, BlockLayer), "the list has nothing else"
        rows = _block_layer(drafter, layer, context, rows)
    return [_norm(row, drafter.norm) for row in rows][1:]


def _block_layer(drafter: Dflash2 | Dspark, layer: BlockLayer, context: Rows, rows: Rows) -> Rows:
    normed = [_norm(row, layer.attention_norm) for row in rows]
    inputs = _convolved(layer, 0, 0, normed, normed)
    seen = [*context, *inputs]
    mixed = [_attend(drafter, layer.attention, seen, len(context) + place) for place in range(len(rows))]
    rows = [row + out for row, out in zip(rows, _convolved(layer, 0, 1, normed, mixed), strict=True)]
    normed = [_norm(row, layer.mlp_norm) for row in rows]
    outputs = [_mlp(layer.mlp, row) for row in _convolved(layer, 1, 0, normed, normed)]
    return [row + out for row, out in zip(rows, _convolved(layer, 1, 1, normed, outputs), strict=True)]


def _convolved(layer: BlockLayer, place: int, side: int, deciding: Rows, rows: Rows) -> Rows:
    if not layer.convolutions:
        return rows
    convolution = layer.convolutions[place]
    assert isinstance(convolution, DynamicConvolution), "the list has nothing else"
    size = rows[0].shape[0] // convolution.num_groups
    outputs = []
    for place_in_block, row in enumerate(rows):
        parts = (convolution.coefficient_proj.weight @ deciding[place_in_block]).view(2, 2, -1)
        weights = convolution.base[side] + parts[side].repeat_interleave(size, dim=-1)
        before = rows[place_in_block - 1] if place_in_block else torch.zeros_like(row)
        outputs.append(weights[0] * row + weights[1] * before)
    return outputs


def _attend(drafter: AnyDrafter, attention: DrafterAttention, seen: Rows, place: int) -> Tensor:
    """What the row at ``place`` gets from all ``seen`` ones, whose places are their positions."""
    dim = attention.head_dim
    theta = drafter.target.config.rope_theta
    query = (attention.query_proj.weight @ seen[place]).view(-1, dim)
    both = [(attention.key_value_proj.weight @ row).view(2, -1, dim) for row in seen]
    groups = query.shape[0] // both[0].shape[1]
    heads = []
    for head in range(query.shape[0]):
        asked = _turned(_norm(query[head], attention.query_norm), place, theta)
        keys = [_turned(_norm(b[0, head // groups], attention.key_norm), at, theta) for at, b in enumerate(both)]
        scores = torch.stack([asked @ key / math.sqrt(dim) for key in keys])
        shares = (scores - scores.max()).exp() / (scores - scores.max()).exp().sum()
        values = [share * b[1, head // groups] for share, b in zip(shares, both, strict=True)]
        heads.append(torch.stack(values).sum(0))
    return attention.out_proj.weight @ torch.cat(heads)


def _mlp(mlp: DrafterMlp, row: Tensor) -> Tensor:
    gate, up = (mlp.in_proj.weight @ row).chunk(2)
    return mlp.out_proj.weight @ (gate * torch.sigmoid(gate) * up)


def _norm(row: Tensor, norm: RootMeanSquareNorm) -> Tensor:
    return norm.weight * row / torch.sqrt((row * row).mean() + norm.epsilon)


def _turned(row: Tensor, position: int, theta: float) -> Tensor:
    half = row.shape[0] // 2
    turned = row.clone()
    for i in range(half):
        angle = position * theta ** (-i / half)
        turned[i] = row[i] * math.cos(angle) - row[i + half] * math.sin(angle)
        turned[i + half] = row[i + half] * math.cos(angle) + row[i] * math.sin(angle)
    return turned


def _head(drafter: AnyDrafter) -> Tensor:
    target = drafter.target
    return target.head_weight


def _lattice(
    found: list[tuple[list[int], Tensor]], chain: list[int], edges: list[Tensor] | None, confidence: list[float] | None
) -> Lattice:
    return Lattice(
        ids=torch.tensor([ids for ids, _ in found])[None],
        log_probs=torch.stack([values for _, values in found])[None],
        chain=torch.tensor(chain)[None],
        edges=None if edges is None else torch.stack(edges)[None],
        confidence=None if confidence is None else torch.tensor(confidence)[None],
    )
