"""Let SGLang's plain PyTorch attention verify drafts: it knows extending, and verifying is extending by the drafts.

    python patch_sglang.py SITE_PACKAGES

Its tree mask is ignored there, so drafts must be chains (``--speculative-ngram-max-bfs-breadth 1``).
"""

import sys
from pathlib import Path

CALL = "        self._run_sdpa_forward_extend(\n            q_,\n"
SETUP = """\
        seq_lens, extend_prefix_lens = forward_batch.seq_lens, forward_batch.extend_prefix_lens
        extend_seq_lens = forward_batch.extend_seq_lens
        if forward_batch.forward_mode.is_target_verify():
            extend_prefix_lens = seq_lens
            extend_seq_lens = torch.full_like(seq_lens, forward_batch.spec_info.draft_token_num)
            seq_lens = seq_lens + extend_seq_lens
"""


def patched(text: str) -> str:
    """The module with the setup before its one call, which then takes the three lengths from it."""
    if text.count(CALL) != 1:
        raise SystemExit("this version of SGLang calls its attention otherwise; nothing was changed")
    before, _, after = text.partition(CALL)
    for name in ("seq_lens", "extend_prefix_lens", "extend_seq_lens"):
        after = after.replace(f"            forward_batch.{name},\n", f"            {name},\n", 1)
    return before + SETUP + CALL + after


if __name__ == "__main__":
    path = Path(sys.argv[1]) / "sglang/srt/layers/attention/torch_native_backend.py"
    source = path.read_text(encoding="utf-8")
    if SETUP not in source:
        path.write_text(patched(source), encoding="utf-8")
