"""Devices that systems are timed on: their names, who has them, and what they report while they work."""
