"""Systems and campaigns with which the timing gate is measured on real hardware."""
