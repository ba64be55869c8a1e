"""Libraries of the tests whose planning blocks, as a file system that does not answer."""

from __future__ import annotations

import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

from hdgemm.errors import CancelledRunError
from tests.server.numpy_library import NumpyLibrary

if TYPE_CHECKING:
    from hdgemm.options import Options
    from hdgemm.server.backend import Demand, Problem

#: Names the file in which `CancellableLibrary` says how far it is.
MARK = "HDGEMM_TEST_MARK"


class BlockedLibrary(NumpyLibrary):
    """Plans without end, and ignores cancellation."""

    def plan(self, problem: Problem, options: Options, cancel: threading.Event) -> Demand:
        threading.Event().wait()
        raise AssertionError


class HeldLibrary(NumpyLibrary):
    """Plans products of three rows when the file that `MARK` names is gone."""

    def plan(self, problem: Problem, options: Options, cancel: threading.Event) -> Demand:
        while problem.m == 3 and Path(os.environ[MARK]).exists():
            time.sleep(0.01)
        return super().plan(problem, options, cancel)


class CancellableLibrary(NumpyLibrary):
    """Plans until it is cancelled; the file named by `MARK` has "planning", then "cancelled"."""

    def plan(self, problem: Problem, options: Options, cancel: threading.Event) -> Demand:
        mark = Path(os.environ[MARK])
        mark.write_text("planning", encoding="utf-8")
        cancel.wait()
        mark.write_text("cancelled", encoding="utf-8")
        raise CancelledRunError("planning was cancelled")
