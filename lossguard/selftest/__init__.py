"""Proof that the instrument works: its error rates measured by simulation, and planted faults judged live."""
