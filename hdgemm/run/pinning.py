"""Operands that a GPU takes where they lie: found, chosen, and page-locked for one run."""

from __future__ import annotations

from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol, Self, runtime_checkable

from hdgemm.errors import DeviceError, DoesNotFitError, InputError
from hdgemm.machine.limits import default_host_bytes
from hdgemm.planning.planner import plan_problem
from hdgemm.planning.registration import Lockable, LockCost, choose_paths
from hdgemm.run.copying import fit_copy_threads

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import TracebackType

    from numpy.typing import NDArray

    from hdgemm.options import Options
    from hdgemm.pipeline.devices.protocol import Device
    from hdgemm.pipeline.plan import DeviceSpec, Operand, Problem
    from hdgemm.planning.registration import PathChoice
    from hdgemm.product.product import Multiplication

#: Arrays below this are not locked for a run: staging them takes a few milliseconds.
_WORTH_LOCKING: Final = 256 << 20


class Locked(Protocol):
    """Page-locked memory, unlocked at the end of the context; locking took `seconds`."""

    seconds: float

    def __enter__(self) -> Self:
        """Hold the memory."""

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
        /,
    ) -> None:
        """Unlock it, unless somebody else holds it too."""


class Chosen(NamedTuple):
    """How the operands of a run meet the device, and the seconds that locking really took.

    `copy_threads` is how many threads copy what is staged, where that was measured.
    """

    choice: PathChoice
    lock_seconds: float
    copy_threads: int | None = None

    def summary(self) -> dict[str, Any]:
        """Return what was chosen and what it cost, as a report carries it."""
        problem = self.choice.problem
        operands: tuple[Operand, ...] = ("A", "B", "C")
        return {
            "paths": {name: problem.spec(name).path for name in operands},
            "registered": list(self.choice.register),
            "register_seconds": self.lock_seconds,
            "expected_lock_seconds": self.choice.lock_seconds,
            "expected_seconds": self.choice.seconds,
            "expected_seconds_staged": self.choice.staged_seconds,
            "copy_threads": self.copy_threads,
        }


@runtime_checkable
class PageLocking(Protocol):
    """What a device offers that can use the application's memory without staging."""

    @property
    def spec(self) -> DeviceSpec:
        """What a plan depends on."""

    def is_pinned(self, array: NDArray[Any]) -> bool:
        """Say whether all of an array is page-locked."""

    def register(self, array: NDArray[Any]) -> Locked:
        """Page-lock an array for the length of the context."""

    def pin_cost(self) -> tuple[float, float]:
        """Return the seconds per byte of locking and of unlocking."""


@contextmanager
def chosen_paths(
    product: Multiplication, problem: Problem, options: Options, device: Device
) -> Iterator[Chosen | None]:
    """Choose how the operands of a product meet the device; hold what is page-locked for it.

    Parameters
    ----------
    product
        With a row-major C.
    problem
        Of this product on this device, all operands staged.

    Yields
    ------
    Chosen or None
        ``choice.problem`` is the one to plan; None where there is nothing to choose.
        An array that the driver would not lock goes through staging.
    """
    if not isinstance(device, PageLocking):
        yield None
        return
    arrays = _arrays(product, problem)
    lockable = _lockable(arrays, device)
    host_limit = options.host_bytes or default_host_bytes()
    with ExitStack() as leases:
        seconds = 0.0
        chosen: Chosen | None = None
        while lockable:
            choice = _choose(problem, options, device, host_limit, lockable)
            taken = {name: _locked(leases, device, arrays[name]) for name in choice.register}
            seconds += sum(one for one in taken.values() if one is not None)
            refused = [name for name, one in taken.items() if one is None]
            if not refused:
                threads = fit_copy_threads(choice.problem, options, device)
                chosen = Chosen(choice, seconds, threads)
                break
            # Those that were locked for this choice count as locked in the next.
            lockable = {
                name: replace(operand, locked=operand.locked or name in choice.register)
                for name, operand in lockable.items()
                if name not in refused
            }
        yield chosen


def direct_where_pinned(product: Multiplication, problem: Problem, device: Device) -> Problem:
    """Let a device take A and B where they lie, where nothing must be locked for it."""
    if not isinstance(device, PageLocking):
        return problem
    arrays = _arrays(product, problem)
    pinned = [name for name, array in arrays.items() if device.is_pinned(array)]
    a = replace(problem.a, path="direct") if "A" in pinned else problem.a
    b = replace(problem.b, path="direct") if "B" in pinned else problem.b
    return replace(problem, a=a, b=b)


def _choose(
    problem: Problem,
    options: Options,
    device: PageLocking,
    host_limit: int,
    lockable: dict[Operand, Lockable],
) -> PathChoice:
    def expected_seconds(candidate: Problem) -> float:
        plan = plan_problem(candidate, options, device.spec, host_limit=host_limit)
        return plan.expected.seconds if plan.expected is not None else 0.0

    known = all(operand.locked for operand in lockable.values())
    cost = LockCost(0.0, 0.0) if known else LockCost(*device.pin_cost())
    return choose_paths(problem, lockable, cost, expected_seconds)


def _lockable(arrays: dict[Operand, NDArray[Any]], device: PageLocking) -> dict[Operand, Lockable]:
    found = {name: Lockable(x.nbytes, device.is_pinned(x)) for name, x in arrays.items()}
    return {
        name: operand
        for name, operand in found.items()
        if operand.locked or operand.nbytes >= _WORTH_LOCKING
    }


def _locked(leases: ExitStack, device: PageLocking, array: NDArray[Any]) -> float | None:
    """Lock an array until the leases end; return its seconds, None where the driver refused."""
    try:
        return leases.enter_context(device.register(array)).seconds
    except (DeviceError, DoesNotFitError, InputError):
        return None


def _arrays(product: Multiplication, problem: Problem) -> dict[Operand, NDArray[Any]]:
    """Return the operands that DMA could take as they lie, by name."""
    stored: dict[Operand, Any] = {"A": product.a, "B": product.b}
    if not problem.reads_c:  # store2 adds beta·C on the host
        stored["C"] = product.c
    return {
        name: operand.matrix.array
        for name, operand in stored.items()
        if not operand.conj and _is_plain(operand.matrix.array, problem)
    }


def _is_plain(array: NDArray[Any] | None, problem: Problem) -> bool:
    """Say whether an array has the product's dtype and rows that the device can take."""
    if array is None or array.dtype != problem.dtype or not array.dtype.isnative:
        return False
    (rows, cols), itemsize = array.shape, array.itemsize
    return (cols <= 1 or array.strides[1] == itemsize) and (
        rows <= 1 or (array.strides[0] >= cols * itemsize and array.strides[0] % itemsize == 0)
    )
