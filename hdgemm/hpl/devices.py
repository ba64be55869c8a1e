"""Devices that update the trailing matrix: cores of the host, and others through the pipeline."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from hdgemm.blas import multiply
from hdgemm.hpl.window import CORE_ROWS, DEVICE_ROWS, Window, host_update
from hdgemm.run.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from hdgemm.hpl.timeline import Recorder
    from hdgemm.hpl.window import Columns, Update
    from hdgemm.options import Options

#: Extents of the product that warms a device up.
_WARM_UP: Final = (256, 256)


class Devices(NamedTuple):
    """Opened devices of one process.

    Parameters
    ----------
    updates
        C := C - A·B, one for each core of the host and each other device.
    names
        The devices' names.
    host
        Whether cores of the host are among them; the first one is that of the caller's thread.
    rows
        Rows that one call updates at most.
    """

    updates: Sequence[Update] = (host_update,)
    names: Sequence[str] = ("host",)
    host: bool = True
    rows: int = CORE_ROWS

    def window(
        self, recorder: Recorder, on_error: Callable[[BaseException], None] = lambda _: None
    ) -> Window:
        """Return a window on which these devices work."""
        return Window(self.updates, self.rows, recorder, on_error, caller_helps=self.host)


@contextmanager
def open_devices(options: Options, threads: int) -> Iterator[Devices]:
    """Open the options' devices; each stays open meanwhile, with a session of its own.

    Parameters
    ----------
    threads
        Cores of the host that update, each with a thread, where the host is among the devices.
    """
    names = (options.devices,) if isinstance(options.devices, str) else options.devices
    names = ("host",) if names == ("auto",) else names
    others = [name for name in names if name != "host"]
    with ExitStack() as stack:
        updates: list[Update] = [host_update] * (threads if "host" in names else 0)
        for name in others:
            session = stack.enter_context(Session(replace(options, devices=(name,))))
            update = _update_in(session)
            # Programs are compiled before the run that is measured.
            update(*(np.zeros(_WARM_UP, order="F") for _ in range(3)))
            updates.append(update)
        yield Devices(updates, names, "host" in names, DEVICE_ROWS if others else CORE_ROWS)


def _update_in(session: Session) -> Update:
    def update(a: Columns, b: Columns, c: Columns) -> None:
        multiply(a, b, c=c, alpha=-1.0, beta=1.0, out=c, session=session)

    return update
