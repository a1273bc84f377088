"""Lossless formats of weights."""
