"""Timing as an operation of the gate: campaigns of swap pairs, their arms, and what they measured."""
