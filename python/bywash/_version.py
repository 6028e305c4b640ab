"""Version of the package, which is that of the program in it."""

__version__ = "0.1.0"
