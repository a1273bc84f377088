"""Engines: the adapters behind the systems of a configuration. ``base`` is the protocol, ``registry`` finds them."""
