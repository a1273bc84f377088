"""W12: bf16 weights in 12 bits each, every bit kept (docs/w12.md)."""
