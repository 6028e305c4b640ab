"""The rows of all tables: drawn from a seed, so that another process can compare them."""

import random

import pyarrow as pa

# Bytes of one row's payload.
WIDTH = 1100


def draw(count, seed=1):
    """Returns `count` rows: a number, a text of any script, a float, and bytes that do not compress."""
    chance = random.Random(seed)
    return pa.table(
        {
            "id": pa.array(range(count), pa.int64()),
            "name": [f"näme-{chance.randrange(1000)}-日本" for _ in range(count)],
            "value": [chance.random() for _ in range(count)],
            "data": [chance.randbytes(WIDTH) for _ in range(count)],
        }
    )


def check(found, wanted):
    """Compares tables in the order of their ids."""
    found = found.select(wanted.column_names).sort_by("id")
    assert found.num_rows == wanted.num_rows, (found.num_rows, wanted.num_rows)
    for name in wanted.column_names:
        # Libraries differ in the widths of their offsets.
        assert found[name].to_pylist() == wanted[name].to_pylist(), f"column {name} differs"
