"""Finished runs over time, in one SQLite file."""
