"""The stages of a run, composed by ``lossguard.gate``: each takes values and gives values."""
