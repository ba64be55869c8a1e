"""The command line, `hdgemm`: a thin layer over the public names of the library."""

import sys

from hdgemm.garbage import rare_collection


def main() -> None:
    """Run the command line in a process of its own."""
    with rare_collection():
        try:
            from hdgemm.cli.app import main as run
        except KeyboardInterrupt:
            sys.stderr.write("hdgemm: interrupted\n")
            raise SystemExit(130) from None
        run()
