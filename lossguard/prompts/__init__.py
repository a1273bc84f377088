"""Prompts: where they come from, how they are split, and how they become requests of token ids."""

from lossguard.prompts.loading import load_prompt_set

__all__ = ["load_prompt_set"]
