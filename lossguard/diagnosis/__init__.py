"""What a FAIL looks like: which family of faults leaves such a pattern. Never part of a verdict."""
