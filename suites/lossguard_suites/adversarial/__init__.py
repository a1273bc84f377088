"""Adversarial suites: faults and controls that an instrument must tell apart."""
