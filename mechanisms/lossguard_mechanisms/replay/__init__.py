"""Recorded lattices of a drafter, and exact replay of tree policies on them without any model.

``record`` runs target and drafter once, ``store`` is the file, ``policies`` say which tree a step would have verified
and ``walk`` goes through the recorded replies. Why the result is exact: docs/replay.md.
"""
