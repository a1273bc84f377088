"""Ready-made speed claims about a system of your own.

    pytest --pyargs lossguard_suites.timing --lossguard-baseline=stock --lossguard-candidate=mine -k not_slower

Both systems are named in your ``lossguard.toml`` and are launched by name, each in a process of its own; sizes, pairs
and devices come from its table ``[timing]``.

Covered: mean speed of whole requests, on the client's clock, in device-swapped pairs.
Not covered: whether replies are right (lossguard_suites.losslessness); other loads and lengths than those of the table.
"""
