"""``y = x W^T`` with W in W12: weights are read once, at 12 bits each, and decoded in registers (docs/w12-gemm.md)."""
