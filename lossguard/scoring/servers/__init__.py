"""Scorers that ask a stock server: its log-probabilities of prompt + reply, token by token."""
