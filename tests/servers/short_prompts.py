"""Prompts for the gate with real servers: short, since on a CPU every token of a prompt costs what one served costs.

They stand as the chat template would write them but for its system message, which is as long as the shortest of them.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

from lossguard.prompts.generator import generate

CHAT: Final = "<|im_start|>user\n{}<|im_end|>\n<|im_start|>assistant\n"
MOST_TOKENS: Final = 24
"""The least that the generator takes."""
EVERY: Final = 16
"""One prompt in so many is three in a row: longer than a prefill chunk of the server with a small pool."""


def write_prompts(path: Path, count: int) -> Path:
    """Prompts of all kinds as a file of a user's own; no two share a passage."""
    made = generate(17, count + 2 * (count // EVERY + 1), max_prompt_tokens=MOST_TOKENS)
    texts = [(prompt.messages or ())[0].content for prompt in made]
    lines = []
    for number in range(count):
        taken, texts = (texts[:3], texts[3:]) if number % EVERY == 0 else (texts[:1], texts[1:])
        lines.append(json.dumps({"prompt": CHAT.format(" ".join(taken))}))
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
