"""A linear layer whose products read 12 bits a weight, by the kernels of ``lossguard_kernels.w12_gemm``."""

from __future__ import annotations

from typing import cast

from torch import Tensor, nn

from lossguard_kernels.w12_gemm.operation import decode, w12_linear
from lossguard_kernels.w12_gemm.same_sizes import same_sizes
from lossguard_kernels.w12_gemm.weights import KernelWeights
from lossguard_mechanisms.weights.w12.codec import encode
from lossguard_mechanisms.weights.w12.linear import W12Linear
from lossguard_mechanisms.weights.w12.w12_tensor import W12Tensor

_PREFIX = "fused_"


class FusedW12Linear(nn.Module):
    """``y = x W^T + b`` with W arranged for the kernels.

    On a GPU and for up to 64 rows of x, the exact products are added in float32 and rounded once, in another order than
    cuBLAS adds them; anywhere else the weights are decoded first, and outputs equal those of ``nn.Linear`` bit for bit.
    ``backend`` is that of ``w12_linear``. For inference only.
    """

    bias: Tensor | None

    def __init__(self, coded: W12Tensor, bias: Tensor | None = None, *, backend: str = "auto") -> None:
        """``coded`` [outputs, inputs]; ``bias`` [outputs] is kept as it is."""
        super().__init__()
        packed = KernelWeights.pack(coded)
        self.out_features, self.in_features = coded.shape
        self.backend = backend
        self.reason_against_fusing = packed.reason_against_fusing
        self.hold(packed)
        self._names = tuple(_PREFIX + name for name in packed.tensors())
        self.register_parameter("bias", None if bias is None else nn.Parameter(bias.detach(), requires_grad=False))

    @classmethod
    def from_linear(cls, layer: nn.Linear | W12Linear, *, backend: str = "auto") -> FusedW12Linear:
        """From a dense bf16 layer, or one in W12. Raises UsageError LG1201 or LG1202."""
        coded = layer.coded if isinstance(layer, W12Linear) else encode(layer.weight)
        return cls(coded, layer.bias, backend=backend)

    @property
    def packed(self) -> KernelWeights:
        """The weights as the kernels read them."""
        tensors = [cast("Tensor", getattr(self, name)) for name in self._names]
        reason = self.reason_against_fusing
        return KernelWeights.of_tensors(
            tensors, rows=self.out_features, columns=self.in_features, reason_against_fusing=reason
        )

    def hold(self, packed: KernelWeights) -> None:
        """Take over other arrays of the same weights."""
        for name, tensor in packed.tensors().items():
            self.register_buffer(_PREFIX + name, tensor)

    @property
    def weight(self) -> Tensor:
        """The bf16 weights [outputs, inputs], decoded anew on every access."""
        return decode(self.packed)

    def forward(self, inputs: Tensor) -> Tensor:
        """``inputs`` [..., inputs] in bf16 -> [..., outputs]. Raises UsageError LG1704."""
        return w12_linear(inputs, self.packed, self.bias, backend=self.backend)

    def extra_repr(self) -> str:
        """Sizes, and how products are made."""
        return f"{self.in_features}, {self.out_features}, backend={self.backend}"


def fuse_linears(model: nn.Module, *, backend: str = "auto") -> dict[str, str]:
    """Replace every ``W12Linear`` of a model in place; returns why those that will decode first do so, by name.

    Layers of one shape get arrays of one size, so that ``torch.compile`` need not compile each of them anew.
    """
    decoded: dict[str, str] = {}
    by_shape: dict[tuple[int, int], list[FusedW12Linear]] = {}
    for name, layer in [(name, layer) for name, layer in model.named_modules() if isinstance(layer, W12Linear)]:
        fused = FusedW12Linear.from_linear(layer, backend=backend)
        parent, _, child = name.rpartition(".")
        setattr(model.get_submodule(parent), child, fused)
        by_shape.setdefault((fused.out_features, fused.in_features), []).append(fused)
        if fused.reason_against_fusing is not None:
            decoded[name] = fused.reason_against_fusing
    for layers in by_shape.values():
        for fused, packed in zip(layers, same_sizes([one.packed for one in layers]), strict=True):
            fused.hold(packed)
    return decoded
