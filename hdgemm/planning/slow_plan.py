"""A warning where more memory would save most of the time of a run."""

from __future__ import annotations

import logging
from contextlib import contextmanager
from contextvars import ContextVar
from typing import TYPE_CHECKING, Final

from hdgemm.units import format_duration

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: A run that takes longer is compared with one that has so many times the memory.
_SLOW_SECONDS: Final = 10.0
MORE_MEMORY: Final = 16
_LOG: Final = logging.getLogger(__name__)
_TRIAL: Final = ContextVar("_TRIAL", default=False)


@contextmanager
def trial() -> Iterator[None]:
    """Suppress the warning: plans that are made in this context will not run."""
    token = _TRIAL.set(True)
    try:
        yield
    finally:
        _TRIAL.reset(token)


def warn_if_slow(
    what: str, parts: str, memory: str, *, seconds: float, least: float, better: Callable[[], float]
) -> None:
    """Log where `MORE_MEMORY` times the memory and a free choice would save most of the time.

    Parameters
    ----------
    what
        The computation, such as ``"the product"``.
    parts
        What the memory holds of it, such as ``"the tile 8×8×8"``.
    memory
        The limits.
    seconds, least
        The expected duration, and the duration of the operations alone.
    better
        Returns the duration with more memory; called where the run is slow.
    """
    if seconds < max(_SLOW_SECONDS, 8 * least) or _TRIAL.get():
        return
    faster = better()
    if faster < seconds / 4:
        _LOG.warning(
            "%s is expected to take %s with %s within %s; with %d times the memory and a free "
            "choice of the plan it would take %s",
            what,
            format_duration(seconds),
            parts,
            memory,
            MORE_MEMORY,
            format_duration(faster),
        )
