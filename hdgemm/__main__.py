"""`python -m hdgemm`, where the `hdgemm` script is not on the path.

Python has put the current folder first on `sys.path`, as the script would not. It leaves the path
before a command imports its modules, unless this package lies in it.
"""

import os
import sys

if not sys.flags.safe_path:
    package = os.path.dirname(os.path.dirname(__file__))  # noqa: PTH120 - pathlib may be foreign
    if sys.path[0] != package:
        del sys.path[0]

from hdgemm.cli import main

main()
