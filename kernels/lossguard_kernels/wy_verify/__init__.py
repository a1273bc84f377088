"""A tree of drafts through the gated delta rule in one pass, and the commit of a path (docs/tree-kernels.md)."""
