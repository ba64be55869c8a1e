"""The processes of a run: threads of each, and the end of all where one fails."""

from __future__ import annotations

import platform
import sys
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING

from hdgemm.errors import CancelledRunError, HdgemmError
from hdgemm.machine.limits import cores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.mpi.communicator import Communicator
    from hdgemm.options import Options


def threads_of(options: Options, world: Communicator) -> int:
    """Return the threads of a process: the options', or its share of the machine's cores."""
    together = world.collect(platform.node()).count(platform.node())
    return options.threads or max(1, cores() // together)


@contextmanager
def ending_all(world: Communicator) -> Iterator[None]:
    """End all processes where this one fails, since the others wait for its messages."""
    try:
        yield
    except BaseException as error:
        end_all(world, error)
        raise


def end_all(world: Communicator, error: BaseException) -> None:
    """End all processes with one message that names this one; alone, do nothing."""
    if world.size == 1:
        return
    if isinstance(error, Exception) and not isinstance(error, HdgemmError):
        traceback.print_exception(error)
    what, code = str(error) or type(error).__name__, getattr(error, "exit_code", 1)
    if isinstance(error, KeyboardInterrupt):
        what, code = "interrupted", CancelledRunError.exit_code
    elif isinstance(error, SystemExit) and isinstance(error.code, int):  # by SIGTERM, for example
        what, code = f"stopped with exit code {error.code}", error.code
    print(f"hdgemm: rank {world.rank} on {platform.node()}: {what}", file=sys.stderr, flush=True)
    time.sleep(1.0)  # an abort makes mpiexec drop output that it has not read yet
    world.abort(code)
