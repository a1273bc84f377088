"""Statistics of paired timing: arrays in, estimates and verdicts out. No I/O, no engine, no torch."""
