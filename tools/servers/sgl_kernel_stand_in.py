"""Stands in for sgl_kernel, so that SGLang 0.5.20 serves on a CPU: installed as ``sgl_kernel/__init__.py``.

No build of the real one for the CPU is to be had. Every function raises when it is called, except the few that greedy
n-gram speculation needs, which are written here in plain PyTorch. They are slow and stand for nothing but themselves.
"""

from __future__ import annotations

import ctypes
import sys
import types
from collections.abc import Callable
from typing import Any

from torch import Tensor

__version__ = "0.4.7"
SUBMODULES = (
    *("elementwise", "moe", "gemm", "sampling", "speculative", "kvcacheio", "quantization", "flash_attn"),
    *("utils", "attention", "grammar", "top_k", "mamba", "cpu"),
)


def _absent(name: str) -> Callable[..., Any]:
    if name.startswith("__"):
        raise AttributeError(name)

    def absent(*_arguments: Any, **_options: Any) -> Any:
        raise NotImplementedError(f"sgl_kernel.{name} has no stand-in")

    absent.__name__ = name
    return absent


class _Submodule(types.ModuleType):
    __path__: list[str] = []  # noqa: RUF012 - what the import system wants of a package

    def __getattr__(self, name: str) -> Callable[..., Any]:
        return _absent(name)


for _name in SUBMODULES:
    sys.modules[f"sgl_kernel.{_name}"] = _Submodule(f"sgl_kernel.{_name}")


def __getattr__(name: str) -> Callable[..., Any]:
    return _absent(name)


def copy_all_layer_kv_cache_cpu(pointers: Tensor, strides: Tensor, target: Tensor, source: Tensor) -> None:
    """Copy whole rows of every layer's cache."""
    targets, sources = target.tolist(), source.tolist()
    for pointer, stride in zip(pointers.tolist(), strides.tolist(), strict=True):
        rows = [ctypes.string_at(pointer + row * stride, stride) for row in sources]
        for row, content in zip(targets, rows, strict=True):
            ctypes.memmove(pointer + row * stride, content, stride)


def assign_extend_cache_locs_cpu(
    requests: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, out: Tensor, _pool_length: int
) -> None:
    """Gather the cache places ``start:end`` of every request."""
    at = 0
    for request, first, last in zip(requests.tolist(), start.tolist(), end.tolist(), strict=True):
        out[at : at + last - first] = req_to_token[request, first:last].to(out.dtype)
        at += last - first


def assign_req_to_token_pool_cpu(
    requests: Tensor, req_to_token: Tensor, start: Tensor, end: Tensor, locations: Tensor, _pool_length: int, *_: Any
) -> None:
    """Write new cache places into the table of every request."""
    at = 0
    for request, first, last in zip(requests.tolist(), start.tolist(), end.tolist(), strict=True):
        req_to_token[request, first:last] = locations[at : at + last - first].to(req_to_token.dtype)
        at += last - first


def fill_bonus_tokens_cpu(tokens: Tensor, lengths: Tensor, bonus: Tensor, stride: int) -> None:
    """The last accepted token of every request."""
    for index, length in enumerate(lengths.tolist()):
        bonus[index] = tokens.reshape(-1)[index * stride + length - 1]


def fill_accept_out_cache_loc_cpu(accepted: Tensor, locations: Tensor, out: Tensor) -> None:
    """Cache places of accepted tokens; -1 stands for none."""
    flat = accepted.reshape(-1)
    kept = flat[flat > -1].long()
    out[: kept.numel()] = locations[kept]


def verify_tree_greedy_cpu(  # noqa: PLR0913 - the caller's signature
    predicts: Tensor,
    accept_index: Tensor,
    accept_token_num: Tensor,
    candidates: Tensor,
    retrive_index: Tensor,
    retrive_next_token: Tensor,
    retrive_next_sibling: Tensor,
    target_predict: Tensor,
) -> None:
    """Walk each tree along the target's own choices; the first that no child holds is the bonus token."""
    target, out = target_predict.reshape(-1), predicts.reshape(-1)
    for row in range(candidates.shape[0]):
        last = int(retrive_index[row, 0])
        accept_index[row, 0] = last
        count = node = 0
        for _ in range(1, accept_index.shape[1]):
            node = int(retrive_next_token[row, node])
            while node != -1 and int(candidates[row, node]) != int(target[last]):
                node = int(retrive_next_sibling[row, node])
            if node == -1:
                break
            out[last] = target[last].to(out.dtype)
            count += 1
            last = int(retrive_index[row, node])
            accept_index[row, count] = last
        accept_token_num[row] = count
        out[last] = target[last].to(out.dtype)


def _reconstruct_indices_from_tree_mask(  # noqa: PLR0913 - the caller's signature
    tree_mask: Tensor,
    seq_lens: Tensor,
    positions: Tensor,
    index: Tensor,
    next_token: Tensor,
    next_sibling: Tensor,
    batch_size: int,
    num_drafts: int,
) -> None:
    """Parents, children and siblings of every node, from which nodes it may see."""
    mask = tree_mask.reshape(batch_size, num_drafts, num_drafts).bool()
    for row in range(batch_size):
        parents = []
        for node in range(num_drafts):
            ancestors = [other for other in range(node) if mask[row, node, other]]
            parents.append(ancestors[-1] if ancestors else -1)
            positions[row * num_drafts + node] = seq_lens[row] + len(ancestors)
            index[row, node] = row * num_drafts + node
        for node in range(num_drafts):
            later = range(node + 1, num_drafts)
            next_token[row, node] = next((other for other in later if parents[other] == node), -1)
            same = (other for other in later if parents[other] == parents[node] != -1)
            next_sibling[row, node] = next(same, -1)


sys.modules["sgl_kernel.speculative"].reconstruct_indices_from_tree_mask = _reconstruct_indices_from_tree_mask  # type: ignore[attr-defined]
