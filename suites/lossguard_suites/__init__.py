"""Ready-made suites that people run against their own systems."""
