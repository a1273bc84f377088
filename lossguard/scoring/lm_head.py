"""The FP32 LM head: the model's own output matrix, multiplied with full-precision accumulation and FP32 results.

Engines round logits to the model's dtype, which makes near ties out of clear decisions. Here only the weights and the
hidden states keep the model's dtype. Products of two bf16 numbers are exact in FP32 (8 + 8 bits of significand), so a
matrix product that takes bf16 operands, accumulates in FP32 and returns FP32 is as good as one of FP32 copies.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

import torch
from torch import Tensor, nn

from lossguard.errors import ScorerError

_SCALE_NAMES: Final = ("logit_scale", "output_multiplier", "lm_head_multiplier")
_SOFT_CAP_NAMES: Final = ("final_logit_softcapping", "logits_soft_cap", "output_logit_soft_cap")
_HALF_DTYPES: Final = (torch.bfloat16, torch.float16)


@dataclass(frozen=True, slots=True, kw_only=True)
class LogitTransform:
    """What a model does to logits after its head: ``cap * tanh(scale * x / cap)``, both parts optional."""

    scale: float = 1.0
    soft_cap: float | None = None

    @property
    def num_roundings(self) -> int:
        """How often a model that computes in its own dtype rounds each logit, the head's product included."""
        return 1 + (self.scale != 1.0) + 3 * (self.soft_cap is not None)

    def apply_(self, logits: Tensor) -> Tensor:
        """In place on FP32 logits of any shape."""
        if self.scale != 1.0:
            logits.mul_(self.scale)
        if self.soft_cap is not None:
            logits.div_(self.soft_cap).tanh_().mul_(self.soft_cap)
        return logits


@dataclass(frozen=True, slots=True, kw_only=True)
class HeadProduct:
    """How hidden states are multiplied with the head, and why so."""

    kind: str  # "fp32", "bf16-operands" (CPU, oneDNN) or "out-dtype" (CUDA, cuBLAS)
    reason: str


class Fp32Head:
    """Logits in FP32 from hidden states in the model's dtype.

    ``weight`` is ``[V, D]``: FP32, or the model's dtype where the device multiplies that with an FP32 result.
    """

    def __init__(self, linear: nn.Linear, transform: LogitTransform, product: HeadProduct) -> None:
        self.product = product
        self.transform = transform
        self.vocab_size = int(linear.weight.shape[0])
        weight = linear.weight.detach()
        self._weight = weight if product.kind == "out-dtype" else weight.float()
        self._bias = None if linear.bias is None else linear.bias.detach().float()

    @property
    def device(self) -> torch.device:
        """Where hidden states are expected."""
        return self._weight.device

    @property
    def writes_out(self) -> bool:
        """Whether ``logits`` can write into a tensor that it is given."""
        return self.product.kind != "out-dtype"

    def prepare(self, hidden: Tensor) -> Tensor:
        """Hidden states [N, D] as the product takes them, on the head's device."""
        moved = hidden.to(self.device)
        return moved if self.product.kind == "out-dtype" else moved.float()

    def logits(self, prepared: Tensor, start: int, stop: int, out: Tensor | None = None) -> Tensor:
        """FP32 logits [N, stop - start] of the vocabulary slice ``start:stop``; written to ``out`` if given."""
        weight = self._weight[start:stop].t()
        if self.product.kind == "out-dtype":
            result = torch.mm(prepared, weight, out_dtype=torch.float32)
        else:
            with _matmul_precision(self.device, self.product.kind):
                result = torch.mm(prepared, weight, out=out) if out is not None else torch.mm(prepared, weight)
        if self._bias is not None:
            result.add_(self._bias[start:stop])
        return self.transform.apply_(result)


def build_head(model: nn.Module) -> Fp32Head:
    """The FP32 head of a causal LM. Raises ScorerError where the head is not a plain linear layer."""
    linear = model.get_output_embeddings()  # type: ignore[operator]
    if not isinstance(linear, nn.Linear) or not linear.weight.is_floating_point() or linear.weight.is_meta:
        raise ScorerError(
            f"the LM head of {type(model).__name__} is a {type(linear).__name__}",
            why="an FP32 head needs the weights of a plain linear layer that is in memory",
            fix="score with the unquantized weights of the model, or through its server",
            code="LG0504",
        )
    product = choose_product(linear.weight.device, linear.weight.dtype)
    return Fp32Head(linear, find_transform(model), product)


def choose_product(device: torch.device, dtype: torch.dtype) -> HeadProduct:
    """The fastest product that returns FP32 results of FP32 accuracy on this device."""
    if dtype not in _HALF_DTYPES:
        return HeadProduct(kind="fp32", reason=f"the head is {dtype}: FP32 operands are needed")
    if device.type == "cuda":
        return _choose_cuda_product(device, dtype)
    if dtype is torch.bfloat16 and device.type == "cpu" and torch.ops.mkldnn._is_mkldnn_bf16_supported():
        reason = "FP32 copies, of which oneDNN may multiply the bf16 parts: they are exact, sums and results are FP32"
        return HeadProduct(kind="bf16-operands", reason=reason)
    return HeadProduct(kind="fp32", reason=f"no {dtype} product with FP32 results on {device.type}")


def _choose_cuda_product(device: torch.device, dtype: torch.dtype) -> HeadProduct:
    probe = torch.ones(16, 16, device=device, dtype=dtype)
    try:
        torch.mm(probe, probe, out_dtype=torch.float32)
    except (RuntimeError, TypeError, NotImplementedError) as error:
        first_line = str(error).partition("\n")[0]
        return HeadProduct(kind="fp32", reason=f"torch.mm with an FP32 result does not run here: {first_line}")
    return HeadProduct(kind="out-dtype", reason=f"{dtype} products are exact; cuBLAS accumulates and returns FP32")


def find_transform(model: nn.Module) -> LogitTransform:
    """The logit transform that the model's config declares; ``verify_head`` shows whether that was all."""
    config: Any = model.config
    texts = [config, config.get_text_config()] if hasattr(config, "get_text_config") else [config]
    scale = _first_number(texts, _SCALE_NAMES)
    divisor = _first_number(texts, ("logits_scaling",))
    return LogitTransform(
        scale=(1.0 if scale is None else scale) / (1.0 if divisor is None else divisor),
        soft_cap=_first_number(texts, _SOFT_CAP_NAMES),
    )


def _first_number(configs: list[Any], names: tuple[str, ...]) -> float | None:
    for config in configs:
        for name in names:
            value = getattr(config, name, None)
            if isinstance(value, (int, float)) and not isinstance(value, bool):
                return float(value)
    return None


def verify_head(own: Tensor, model_logits: Tensor, dtype: torch.dtype, num_roundings: int) -> float:
    """Compare the FP32 head's logits with the model's own, both [N, V]; returns the largest difference in nats.

    Raises ScorerError if they differ by more than ``num_roundings`` roundings to ``dtype`` explain, and one more for
    products whose partial sums are rounded. A rounding is at most half an epsilon of the logit, or of half the largest
    one where terms cancel.
    """
    if own.shape != model_logits.shape:
        raise _head_differs(f"it returns {tuple(model_logits.shape)} logits, the head gives {tuple(own.shape)}")
    theirs = model_logits.float()
    largest = own.abs().max()
    rounding = torch.finfo(dtype).eps / 2 * torch.maximum(own.abs(), largest / 2)
    difference = (own - theirs).abs()
    if not bool((difference <= (num_roundings + 1) * rounding + 1e-4 * largest).all()):
        found = f"its logits differ by up to {float(difference.max()):.4g} nats, of at most {float(largest):.4g}"
        raise _head_differs(found)
    return float(difference.max())


def _head_differs(found: str) -> ScorerError:
    return ScorerError(
        f"the model does more to its logits than multiply with its head: {found}",
        why="gaps and ranks would be those of another model",
        fix="score this model through its server, or report its architecture so that the transform can be added",
        code="LG0505",
    )


@contextlib.contextmanager
def _matmul_precision(device: torch.device, kind: str) -> Iterator[None]:
    """Precision of FP32 products, set for the head alone: the backbone keeps what the process had."""
    if device.type != "cpu":
        overall = torch.get_float32_matmul_precision()
        torch.set_float32_matmul_precision("highest")  # no TF32
        try:
            yield
        finally:
            torch.set_float32_matmul_precision(overall)
        return
    mkldnn: Any = torch.backends.mkldnn
    before = mkldnn.matmul.fp32_precision
    mkldnn.matmul.fp32_precision = "bf16" if kind == "bf16-operands" else "ieee"
    try:
        yield
    finally:
        mkldnn.matmul.fp32_precision = before
