"""A library of the tests whose planning never ends, as a file system that does not answer."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

from hdgemm.server.numpy_backend import NumpyLibrary

if TYPE_CHECKING:
    from hdgemm.options import Options
    from hdgemm.server.backend import Demand, Problem


class BlockedLibrary(NumpyLibrary):
    """Plans for ever, deaf to cancellation."""

    def plan(self, problem: Problem, options: Options, cancel: threading.Event) -> Demand:
        threading.Event().wait()
        raise AssertionError
