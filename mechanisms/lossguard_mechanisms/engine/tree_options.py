"""From a system's options to the policy of its trees, before any weights are read."""

from __future__ import annotations

from pathlib import Path

from lossguard_mechanisms.drafters.lattice import TOP_K
from lossguard_mechanisms.drafters.loading import read_drafter_config
from lossguard_mechanisms.engine.options import EmbeddedOptions
from lossguard_mechanisms.trees.choice import AnyPolicy, LatticeSizes, TreeOrder, policy_for
from lossguard_mechanisms.trees.names import CHAIN
from lossguard_mechanisms.trees.policies import ChainPolicy


def resolve_policy(
    options: EmbeddedOptions, *, vocab_size: int, has_kernel: bool | None = None
) -> tuple[AnyPolicy, str]:
    """(policy, what its scores are and why) of a system with a drafter. ``has_kernel``: see ``BestFirstPolicy``.

    Raises UsageError LG1901 for more nodes than a tree holds or the lattice has paths for, LG1903 for a depth beyond
    the drafter's, LG1401 or LG1402 for a folder that is no drafter's.
    """
    assert options.drafter is not None, "without a drafter there is no policy"
    config = read_drafter_config(Path(options.drafter))
    if options.policy == CHAIN:
        num_drafts = min(options.num_drafts or config.num_depths, config.num_depths)
        return ChainPolicy(num_drafts), "the drafter's own chain"
    sizes = LatticeSizes(drafter=config.name, num_depths=config.num_depths, num_candidates=min(TOP_K, vocab_size))
    order = TreeOrder(policy=options.policy, num_nodes=options.nodes, num_depths=options.depth)
    return policy_for(order, sizes, has_kernel=has_kernel)


def require_policy(options: EmbeddedOptions, *, vocab_size: int) -> None:
    """Refuse early what ``resolve_policy`` would refuse; a chain fits any drafter."""
    if options.policy != CHAIN:
        resolve_policy(options, vocab_size=vocab_size)


def policy_reason(options: EmbeddedOptions, *, vocab_size: int) -> str:
    """For fingerprints."""
    if options.drafter is None:
        return "no drafter is named"
    if options.policy == CHAIN:
        return "the drafter's own chain"
    return resolve_policy(options, vocab_size=vocab_size)[1]
