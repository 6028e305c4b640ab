"""`python -m bywash` is the program."""

import os
import sys

from ._daemon import program


def main() -> None:
    """Replaces this process by the program."""
    path = program()
    os.execv(path, [path, *sys.argv[1:]])


if __name__ == "__main__":
    main()
