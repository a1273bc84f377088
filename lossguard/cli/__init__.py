"""The command line. ``main`` is the console script; nothing heavy is imported before a command needs it."""

from lossguard.cli.main import main

__all__ = ["main"]
