"""The values of all arrays: drawn from a seed, so that another process can compare them."""

import numpy as np

# Bytes of one row.
WIDTH = 1100


def draw(count, seed=1):
    """Returns `count` rows of bytes that do not compress."""
    return np.random.default_rng(seed).integers(0, 256, (count, WIDTH), dtype=np.uint8)


def check(found, wanted):
    assert found.shape == wanted.shape, (found.shape, wanted.shape)
    assert np.array_equal(found, wanted)
