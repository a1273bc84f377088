"""Makes the model once, and prompts; a real project has both."""

import json

import numpy as np
from toylm import MODEL, VOCAB, write_model

PROMPTS = MODEL.parent / "prompts.jsonl"


def pytest_configure() -> None:
    """Before anything is collected, and once."""
    if not (MODEL / "model.safetensors").exists():
        write_model()
    if not PROMPTS.exists():
        rng = np.random.default_rng(3)
        rows = [rng.integers(1, VOCAB, rng.integers(14, 20)).tolist() for _ in range(360)]
        PROMPTS.write_text("".join(json.dumps({"prompt_ids": row}) + "\n" for row in rows))
