"""The only place that turns (run seed, purpose, step) into the seed of a random stream.

Every random choice of a run has its own stream, named by what it is for. Adding a draw in one place therefore
changes no draw in another, and a step can be repeated without repeating the steps before it.
"""

import hashlib


def stream_seed(*parts: int | str) -> int:
    """A 63-bit seed that depends on every part and on their order.

    >>> stream_seed(0, "rollout", 7) == stream_seed(0, "rollout", 7)
    True
    >>> stream_seed(0, "rollout", 7) == stream_seed(0, "rollout", 8)
    False
    """
    name = "/".join(map(repr, parts))
    digest = hashlib.blake2b(name.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1  # torch takes signed 64-bit seeds
