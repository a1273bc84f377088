"""Run by ``test_kernels``: compare kernels with torch's own operations on the CPU, and say that they agree."""

from __future__ import annotations

import sys

import torch
from torch import Tensor

from lossguard_mechanisms.engine.delta_kernel import delta_step_in_place
from lossguard_mechanisms.engine.paged_attention import attend_pages, write_rows
from lossguard_mechanisms.engine.paged_step import PagedStep, own_bits
from lossguard_mechanisms.targets.gated_delta import delta_step
from lossguard_mechanisms.targets.mixing import DeltaInputs

SHAPES = ((2, 1, 6, 2, 16, 16, 5), (3, 5, 4, 2, 32, 16, 4), (1, 8, 8, 1, 16, 32, 3))  # B, T, heads, key heads, dim, ...


def attention() -> None:
    """Chains and random trees over scattered pages, and the writes."""
    for batch, own, heads, key_heads, dim, page, num_pages in SHAPES:
        pools = [torch.randn(batch * num_pages + 1, key_heads, page, dim) for _ in range(2)]
        table = torch.randperm(batch * num_pages).view(batch, num_pages)
        past = torch.randint(0, num_pages * page - own, (batch,))
        query = torch.randn(batch * own, heads, dim)
        for ancestors in (None, _random_ancestors(batch, own)):
            bits = own_bits(ancestors, batch=batch, own=own, device=query.device)
            places = past[:, None] + torch.arange(own)
            blocks = table.gather(1, places // page)[..., None] * key_heads + torch.arange(key_heads)
            writes = (blocks * page + (places % page)[..., None]).flatten()
            step = PagedStep(table=table, past_lengths=past, bits=bits, writes=writes)
            key, value = (torch.randn(batch * own, key_heads, dim) for _ in range(2))
            write_rows(key, value, pools[0], pools[1], step)
            torch.testing.assert_close(pools[0].view(-1, dim)[writes], key.flatten(0, 1))
            torch.testing.assert_close(pools[1].view(-1, dim)[writes], value.flatten(0, 1))
            seen = torch.ones(own, own).tril().bool().expand(batch, own, own) if ancestors is None else ancestors
            expected = _attention(query, pools, table, past, seen)
            torch.testing.assert_close(attend_pages(query, pools[0], pools[1], step), expected)


def delta() -> None:
    """One token from given states, with views as the layer gives them."""
    batch, key_heads, heads, key_dim, value_dim = 3, 2, 4, 16, 32
    channels = torch.randn(batch, 2 * key_heads * key_dim + heads * value_dim)
    wide = (key_heads * key_dim, key_heads * key_dim, heads * value_dim)
    query, key, value = channels.split(wide, dim=-1)
    inputs = DeltaInputs(
        query=query.unflatten(-1, (key_heads, key_dim)),
        key=key.unflatten(-1, (key_heads, key_dim)),
        value=value.unflatten(-1, (heads, value_dim)),
        log_decay=-torch.rand(batch, heads),
        beta=torch.rand(batch, heads),
    )
    states, slots = torch.randn(6, heads, key_dim, value_dim), torch.tensor([4, 1, 2])
    expected, after = delta_step(inputs, states[slots])
    changed = states.clone()
    torch.testing.assert_close(delta_step_in_place(inputs, changed, slots), expected)
    torch.testing.assert_close(changed[slots], after)
    assert torch.equal(changed[[0, 3, 5]], states[[0, 3, 5]]), "other slots stay"


def _random_ancestors(batch: int, own: int) -> Tensor:
    ancestors = torch.eye(own, dtype=torch.bool).repeat(batch, 1, 1)
    for sequence in range(batch):
        for row in range(1, own):
            ancestors[sequence, row] |= ancestors[sequence, int(torch.randint(0, row, (1,)))]
    return ancestors


def _attention(query: Tensor, pools: list[Tensor], table: Tensor, past: Tensor, seen: Tensor) -> Tensor:
    """Row by row and head by head."""
    output, own, groups = torch.empty_like(query), seen.shape[1], query.shape[1] // pools[0].shape[1]
    for sequence in range(len(table)):
        keys, values = (pool[table[sequence]].transpose(0, 1).flatten(1, 2) for pool in pools)
        for row in range(own):
            begin = int(past[sequence])
            visible = [*range(begin), *(begin + other for other in range(own) if seen[sequence, row, other])]
            for head in range(query.shape[1]):
                one = query[sequence * own + row, head]
                weights = torch.softmax(keys[head // groups, visible] @ one * query.shape[-1] ** -0.5, dim=0)
                output[sequence * own + row, head] = weights @ values[head // groups, visible]
    return output


if __name__ == "__main__":
    torch.manual_seed(0)
    {"attention": attention, "delta": delta}[sys.argv[1]]()
    sys.stdout.write("they agree\n")
