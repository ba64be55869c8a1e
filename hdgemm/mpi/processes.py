"""The processes of a run: threads of each, and the end of all where one fails."""

from __future__ import annotations

import platform
import sys
import time
import traceback
from contextlib import contextmanager
from typing import TYPE_CHECKING, Final

from hdgemm.errors import CancelledRunError, HdgemmError
from hdgemm.machine.limits import cores

if TYPE_CHECKING:
    from collections.abc import Iterator

    from hdgemm.mpi.communicator import Communicator
    from hdgemm.options import Options

#: Attribute of an error that all processes raise.
_SHARED: Final = "on_all_ranks"


def threads_of(options: Options, world: Communicator) -> int:
    """Return the threads of a process: the options', or its share of the machine's cores."""
    together = world.collect(platform.node()).count(platform.node())
    return options.threads or max(1, cores() // together)


@contextmanager
def ending_all(world: Communicator) -> Iterator[None]:
    """End all processes where this one fails, since the others wait for its messages.

    An error that all of them raise is raised only.
    """
    try:
        yield
    except BaseException as error:
        if not on_all(error):
            end_all(world, error)
        raise


@contextmanager
def together(world: Communicator) -> Iterator[None]:
    """Raise the error of one process on all of them, on leaving.

    The block exchanges no messages, or raises on all. The message names the rank and its machine,
    unless all have the same error.
    """
    failed: Exception | None = None
    try:
        yield
    except Exception as error:  # noqa: BLE001 - raised below, on all processes
        failed = error
    found = world.collect(None if failed is None else (platform.node(), _portable(failed)))
    errors = [(rank, *each) for rank, each in enumerate(found) if each is not None]
    if not errors:
        return
    same = len(errors) == world.size and len({str(error) for _, _, error in errors}) == 1
    rank, host, first = errors[0]
    if failed is not None and (same or rank == world.rank):
        first = failed
    if not same:
        first.args = (f"rank {rank} on {host}: {first}",)
    first.__dict__[_SHARED] = True
    raise first


def on_all(error: BaseException) -> bool:
    """Say whether all processes raise this error."""
    return bool(error.__dict__.get(_SHARED))


def _portable(error: Exception) -> Exception:
    """Return an error that can be sent: of the library or the system; others as their text."""
    if isinstance(error, HdgemmError):
        return error
    text = str(error) or type(error).__name__
    return MemoryError(text) if isinstance(error, MemoryError) else HdgemmError(text)


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
