"""Drafters: small models that read the target's features and name candidates for the tokens that follow.

``lattice`` is what they give, ``base`` what an engine asks of them. ``dflash2`` and ``dspark`` fill a block in one
pass, ``eagle3`` goes token by token. All read the target's own embedding and head, which they do not store.
"""
