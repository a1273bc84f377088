"""Trees of drafted tokens: which are verified together, and which of them become tokens of the reply.

``tree`` is the value. ``best_first``, ``dynamic`` and ``static_shape`` choose nodes on recorded lattices (numpy),
``beam`` does the same on the device in fixed shapes (torch), ``policies`` make trees of them; ``matching`` and
``rejection`` accept.
"""
