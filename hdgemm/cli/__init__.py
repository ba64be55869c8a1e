"""The command line, `hdgemm`: a thin layer over the public names of the library."""

from hdgemm.garbage import rare_collection


def main() -> None:
    """Run the command line in a process of its own."""
    with rare_collection():
        from hdgemm.cli.app import main as run

        run()
