"""The command line, `hdgemm`: a thin layer over the public names of the library."""

from hdgemm.cli.app import main

__all__ = ["main"]
