"""Attention of the nodes of trees over pages: committed keys and the tree's own, in one pass (docs/tree-kernels.md)."""
