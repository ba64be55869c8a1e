"""Entry point of the service's child processes: `python -m hdgemm.server.child MODULE ARGUMENTS`.

It calls the module's `main`, and exits with the status that this returns.
"""

import sys
from importlib import import_module

from hdgemm.garbage import rare_collection

if __name__ == "__main__":
    with rare_collection():
        sys.exit(import_module(sys.argv.pop(1)).main())
