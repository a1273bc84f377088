"""Recorded baselines: what stock served and scored once, kept in a file per claim."""
