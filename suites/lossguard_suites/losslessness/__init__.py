"""Ready-made claims about a system of your own.

    pytest --pyargs lossguard_suites.losslessness --lossguard-baseline=stock --lossguard-candidate=mine

Both systems are named in your ``lossguard.toml``; prompts are its ``[prompts] sets`` (by default the five generated
kinds, pooled). Without ``--lossguard-candidate`` every claim is red.

Covered: greedy decoding at the session's budget; the candidate alone in its batch and in odd batches (for engines that
have the option ``batch_size``; deselect with ``-k "not batch"`` where there is none); long replies.
Not covered: temperature over 0; repeats of a prompt within a run; grammars and tool calls; prompts longer than your
sets have; speed.
"""
