"""Renderings of a run. The JSON report is the contract; every other form renders it."""
