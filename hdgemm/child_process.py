"""Command line of this package's child processes, and the program at their start.

With ``-m`` or ``-c`` the current folder is the first on `sys.path`. There lie matrices, and an
``html.py`` among them would be imported instead of Python's own.
"""

from __future__ import annotations

import sys
from importlib import import_module
from pathlib import Path
from typing import Final

#: Set to "1", it keeps the current folder off the path of a Python process without -P.
SAFE_PATH: Final = "PYTHONSAFEPATH"


def child_command(module: str, *arguments: str) -> list[str]:
    """Return the command of a process that calls a module's `main`, and exits with its status.

    `sys.path` has the folders of PYTHONPATH, and not the current one.
    """
    return [sys.executable, "-P", __file__, module, *arguments]


def _run() -> None:
    # The parent's package, also where its folder is on the path of a `python -m` alone.
    package = str(Path(__file__).parents[1])
    if package not in sys.path:
        sys.path.insert(0, package)
    from hdgemm.garbage import rare_collection

    with rare_collection():
        sys.exit(import_module(sys.argv.pop(1)).main())


if __name__ == "__main__":
    _run()
