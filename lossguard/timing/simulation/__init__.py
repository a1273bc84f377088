"""Simulated timing campaigns, judged by the same functions as measured ones."""
