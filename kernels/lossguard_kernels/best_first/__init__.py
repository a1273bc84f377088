"""Best-first trees of a drafter's lattice, one launch for all sequences."""
