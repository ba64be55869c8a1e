"""`python -m hdgemm`, where the `hdgemm` script is not on the path."""

from hdgemm.cli import main

main()
