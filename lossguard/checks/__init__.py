"""The checks: pure functions from replies and scores to verdicts with evidence."""
