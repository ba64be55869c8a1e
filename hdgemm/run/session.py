"""Opened devices, their slots and learned rates, kept for several calls."""

from __future__ import annotations

import atexit
import logging
import math
import os
import threading
import time
import weakref
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, NoReturn, Self

from hdgemm.errors import CancelledRunError, InputError, InputTypeError
from hdgemm.machine.calibration import WORTH_MEASURING, machine_for
from hdgemm.machine.limits import available_bytes, thread_limit
from hdgemm.matrices.generated import within_function
from hdgemm.options import Options
from hdgemm.pipeline.devices.host_blas import blas_threads
from hdgemm.pipeline.devices.registry import open_device
from hdgemm.pipeline.slot_cache import SlotCache
from hdgemm.progress import CalibrationMeter, Callbacks
from hdgemm.tables import Table
from hdgemm.threads import RUNNING, Worker
from hdgemm.units import format_size
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import DeviceSpec, Problem
    from hdgemm.tasks.machine import TaskMachine

_LOG: Final = logging.getLogger(__name__)
#: Least bytes of a plan for which available memory is read, which takes as long as a small product.
_WORTH_ASKING: Final = 256 << 20


class _DeviceKey(NamedTuple):
    """What a device is opened with."""

    name: str
    memory_bytes: int | None
    threads: int | None

    def open(self) -> Device:
        return open_device(self.name, self.memory_bytes, threads=self.threads)


class Session:
    """Devices and their memory, kept open for several calls.

    The first call that needs a device opens it (driver context, compiled programs) and allocates
    its slots; later calls reuse both, so that a second product of the same shape starts within
    milliseconds. Slots of a shape that is no longer used are freed before new ones are allocated:
    memory never exceeds the options of the call that runs. One call runs at a time; calls from
    other threads wait.

    Parameters
    ----------
    options
        Defaults for the calls of the session; a call's own `options` replace them.

    See Also
    --------
    Options : Limits and devices.
    devices : Devices of this machine.

    Examples
    --------
    >>> with hdgemm.Session(hdgemm.Options(host_memory="1GB")) as session:
    ...     for name in ("A", "B"):
    ...         c = hdgemm.matmul(f"{name}.npy", "S.npy", out=f"{name}S.npy", session=session)
    """

    @refuses_unknown
    def __init__(self, options: Options | None = None) -> None:
        self.options = check_options(options)
        self._devices: dict[_DeviceKey, Device] = {}
        self._slots: dict[Device, SlotCache] = {}
        self._machines: dict[tuple[object, ...], Machine] = {}
        #: Bytes/s of the disk that plans may count on, where others read from it too.
        self.disk_share = math.inf
        self._running = threading.RLock()
        #: Threads that use a tile of a run, which waits for them meanwhile.
        self._consumers: set[int] = set()
        self._closed = False
        #: Measured capabilities of the host and devices for factorisations by tasks.
        self.task_machines: dict[tuple[object, ...], TaskMachine] = {}
        #: Seconds that this session has spent on measuring rates.
        self.calibration_seconds = 0.0
        self._warned_of_memory = False
        _SESSIONS.add(self)

    def __reduce__(self) -> NoReturn:
        raise InputTypeError(
            "a session has opened devices and cannot be copied or pickled: pass its options, and "
            "make a session there"
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _repr_html_(self) -> str:
        """Return the opened devices and the options as tables, for a notebook."""
        devices = [(key.name, device.spec.name) for key, device in self._devices.items()]
        state = "closed" if self._closed else "open"
        opened = Table(("device", "opened as"), devices, f"Session, {state}", text=True)
        return opened.html() + self.options._repr_html_()

    def close(self) -> None:
        """Free all slots and close all devices; further calls are refused."""
        with self._turn():
            self._closed = True
            while self._devices:
                self._close_device(next(iter(self._devices)))

    @contextmanager
    def consumed(self) -> Iterator[None]:
        """Refuse calls of this thread, for which a run of this session waits."""
        thread = threading.get_ident()
        self._consumers.add(thread)
        try:
            yield
        finally:
            self._consumers.discard(thread)

    def check_consumer(self) -> None:
        """Raise `InputError` in a thread for which a run of this session waits."""
        if threading.get_ident() in self._consumers:
            raise InputError(
                "the session computes the stream whose tile this thread uses: close that stream "
                "before, or use another session, or none"
            )

    @contextmanager
    def _turn(self) -> Iterator[None]:
        """Wait until no other call runs; what a run calls and waits for would wait for itself."""
        self.check_consumer()
        thread = threading.current_thread()
        within_a_run = (isinstance(thread, Worker) and thread.within_run) or within_function()
        if not self._running.acquire(blocking=not within_a_run):
            raise InputError(
                "the session computes what this observer, progress function, generated matrix or "
                "operand was called for: use another session there, or none"
            )
        try:
            yield
        finally:
            self._running.release()

    @contextmanager
    def running(self, options: Options) -> Iterator[None]:
        """Hold the session for one call, with the BLAS threads of its options."""
        with self._turn(), thread_limit():
            if self._closed:
                raise InputError("the session is closed: open a new one")
            if options.threads is None:
                yield
                return
            with blas_threads(options.threads):
                yield

    def device(self, name: str, options: Options) -> Device:
        """Return an opened device, or raise `DeviceUnavailableError`."""
        key = _DeviceKey(name, options.device_bytes, options.threads if name == "host" else None)
        if key not in self._devices:
            self._devices[key] = key.open()
        return self._devices[key]

    def slots(self, device: Device) -> SlotCache:
        """Return the slots kept on an opened device."""
        return self._slots.setdefault(device, SlotCache(device))

    def warn_of_memory(self, held: int) -> None:
        """Log, once, that a plan holds more host memory than is available beside kept slots."""
        if held < _WORTH_ASKING or self._warned_of_memory:
            return
        available = available_bytes() + sum(cache.host_bytes for cache in self._slots.values())
        if held > available:
            self._warned_of_memory = True
            _LOG.warning(
                "the plan holds %s of host memory, and %s are available here: the run may swap or "
                "be killed; lower host_memory",
                format_size(held),
                format_size(available),
            )

    def free_slots(self) -> None:
        """Free the slots that are kept on all devices, before memory is used for something else."""
        with self._turn():
            for cache in self._slots.values():
                cache.clear()

    def reopen(self, device: Device) -> Device:
        """Close a device and open it again: a device reports its free memory when it opens."""
        key = next(key for key, opened in self._devices.items() if opened is device)
        self._close_device(key)
        self._devices[key] = key.open()
        return self._devices[key]

    def machine(
        self,
        device: DeviceSpec,
        problem: Problem,
        folder: Path | None,
        threads: int | None,
        callbacks: Callbacks | None = None,
    ) -> Machine:
        """Return the rates for the plan of a problem.

        They are measured at first use if the problem is large enough to be worth it, and stay the
        same for the session, so that the same product has the same plan. `callbacks` receives the
        progress of the measurement and may cancel it.
        """
        key = (device, folder, threads, problem.in_place, problem.flops >= WORTH_MEASURING)
        if key not in self._machines:
            meter = CalibrationMeter(callbacks or Callbacks())
            self._machines[key] = machine_for(
                problem, device, folder, threads=threads, progress=meter, cancel=meter.cancel
            )
            self.calibration_seconds += meter.seconds
        found = self._machines[key]
        share = self.disk_share
        return replace(
            found, disk_read=min(found.disk_read, share), disk_write=min(found.disk_write, share)
        )

    def _close_device(self, key: _DeviceKey) -> None:
        device = self._devices.pop(key)
        self.task_machines.clear()
        cache = self._slots.pop(device, None)
        try:
            if cache is not None:
                cache.clear()
        finally:
            device.close()


#: How long the interpreter's end waits for runs to stop.
_LAST_SECONDS: Final = 10.0
#: One object for each call that is not at its end.
_CALLS: Final[set[object]] = set()
_SESSIONS: Final[weakref.WeakSet[Session]] = weakref.WeakSet()


def _unlock_sessions() -> None:
    """Make the locks anew in a forked child: a thread that it lacks may hold them."""
    _CALLS.clear()
    for session in _SESSIONS:
        session._running = threading.RLock()  # noqa: SLF001 - of this module
        session._consumers.clear()  # noqa: SLF001


def _stop_runs() -> None:
    """Stop the runs of daemon threads: Python would end these in a driver's call, which aborts."""
    error = CancelledRunError("the interpreter ends; the result is not finished")
    for stop in list(RUNNING):
        stop(error)
    deadline = time.monotonic() + _LAST_SECONDS
    while _CALLS and time.monotonic() < deadline:  # they remove their drafts
        time.sleep(0.005)


os.register_at_fork(after_in_child=_unlock_sessions)
atexit.register(_stop_runs)


def check_options(options: Any) -> Options:
    """Return options, the defaults for None; `InputError` for anything but `Options`."""
    if options is None:
        return Options()
    if not isinstance(options, Options):
        raise InputError(
            f"options must be hdgemm.Options, got {type(options).__name__}: "
            "write options=hdgemm.Options(host_memory='1GB', ...)"
        )
    return options


@contextmanager
def session_for(session: Session | None, options: Any) -> Iterator[tuple[Session, Options]]:
    """Yield a session and the options of one call; a session of its own where none is given."""
    call = object()
    _CALLS.add(call)
    try:
        if session is None:
            with Session(check_options(options)) as own:
                yield own, own.options
        elif isinstance(session, Session):
            yield session, session.options if options is None else check_options(options)
        else:
            raise InputTypeError(f"session must be hdgemm.Session, got {type(session).__name__}")
    finally:
        _CALLS.discard(call)
