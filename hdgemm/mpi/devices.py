"""Devices that update the trailing matrix: cores of the host, and others through the pipeline."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.mpi._window import CORE_ROWS, DEVICE_ROWS, Window, host_solve, host_update
from hdgemm.pipeline.devices.protocol import Block, Tile, Triangle

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from hdgemm.mpi._timeline import PhaseRecorder
    from hdgemm.mpi._window import Columns, Solve, Update
    from hdgemm.options import Options
    from hdgemm.run.session import Session

#: Extents of the product that warms a device up.
_WARM_UP: Final = (256, 256)


class Devices(NamedTuple):
    """Opened devices of one process.

    `updates` has C := C - A·B for each core of the host and each other device, `names` the devices'
    names. With `host`, cores of the host are among them; the first one runs the caller's
    thread. One call updates `rows` at most. `solves` says how a device solves for the rows of U;
    others do it with the host's BLAS.
    """

    updates: Sequence[Update] = (host_update,)
    names: Sequence[str] = ("host",)
    host: bool = True
    rows: int = CORE_ROWS
    solves: Mapping[Update, Solve] = MappingProxyType({})

    def window(
        self, recorder: PhaseRecorder, on_error: Callable[[BaseException], None] = lambda _: None
    ) -> Window:
        """Return a window on which these devices work."""
        return Window(
            self.updates,
            self.rows,
            recorder,
            on_error,
            caller_helps=self.host,
            solves=self.solves,
        )


@contextmanager
def open_devices(options: Options, threads: int) -> Iterator[Devices]:
    """Open the options' devices; each stays open meanwhile, with a session of its own.

    Where the host is among them, `threads` of its cores update, each with a thread.
    """
    names = (options.devices,) if isinstance(options.devices, str) else options.devices
    names = ("host",) if names == ("auto",) else names
    others = [name for name in names if name != "host"]
    with ExitStack() as stack:
        updates: list[Update] = [host_update] * (threads if "host" in names else 0)
        solves: dict[Update, Solve] = {}
        if others:  # the engine of products takes as long to import as all else together
            from hdgemm.run.session import Session
        for name in others:
            session = stack.enter_context(Session(replace(options, devices=(name,))))
            updates.append(_update_in(session))
            if hasattr(session.device(name, session.options), "trsm"):
                solves[updates[-1]] = _solve_in(session, name)
            # Programs are compiled before the run that is measured.
            warm_up = [np.eye(*_WARM_UP, dtype=np.float64, order="F") for _ in range(3)]
            updates[-1](*warm_up)
            solves.get(updates[-1], host_solve)(*warm_up[:2])
        rows = DEVICE_ROWS if others else CORE_ROWS
        yield Devices(updates, names, "host" in names, rows, solves)


def _update_in(session: Session) -> Update:
    from hdgemm.blas.products import multiply

    def update(a: Columns, b: Columns, c: Columns) -> None:
        multiply(a, b, c=c, alpha=-1.0, beta=1.0, out=c, session=session)

    return update


def _solve_in(session: Session, name: str) -> Solve:
    def solve(triangle: Columns, b: Columns) -> None:
        with session.running(session.options):
            try:
                _solve_on(session.device(name, session.options), triangle, b)
            except DoesNotFitError:  # beside the slots of products
                host_solve(triangle, b)

    return solve


def _solve_on(device: Any, triangle: Columns, b: Columns) -> None:
    """B := L⁻¹·B on a device, which holds the transposes of both row-major."""
    with ExitStack() as stack:
        blocks = []
        for stored in (triangle.T, b.T):
            rows, cols = stored.shape
            buffer = device.allocate(device.slot_bytes("C", rows, cols, stored.dtype))
            stack.callback(device.free, buffer)
            blocks.append(
                Block(Tile("C", buffer, rows, cols, cols, stored.dtype), 0, 0, rows, cols)
            )
        stack.callback(device.synchronize)
        arrays = (triangle.T, b.T)
        arrived = [
            device.upload(stored, block, ()) for stored, block in zip(arrays, blocks, strict=True)
        ]
        solved = device.trsm(*blocks, Triangle("R", lower=False, unit=True), arrived)
        device.download(blocks[1], b.T, (solved,)).wait()
