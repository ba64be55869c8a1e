"""What can go wrong, each with its numbers as attributes and an exit code for the command line."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from hdgemm.units import format_size


class HdgemmError(Exception):
    """Base of every error this library raises on purpose.

    The numbers behind the message are attributes, and survive pickling between processes.
    """

    exit_code = 1

    def __init__(self, message: str, **numbers: Any) -> None:
        super().__init__(message)
        self.numbers = numbers

    def __getattr__(self, name: str) -> Any:
        try:
            return self.__dict__["numbers"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> tuple[Any, ...]:
        return _rebuild, (type(self), str(self), self.numbers)


def _rebuild(cls: type[HdgemmError], message: str, numbers: dict[str, Any]) -> HdgemmError:
    return cls(message, **numbers)


class InputError(HdgemmError, ValueError):
    """An operand, an option or a file is not what the call needs."""

    exit_code = 2


class InputTypeError(InputError, TypeError):
    """An operand's dtype or kind cannot be multiplied."""


class NotFiniteError(InputError):
    """An operand holds a NaN or an infinity: `row` and `col`."""


class DoesNotFitError(HdgemmError, MemoryError):
    """No plan fits: `requested`, `available` and `missing` are in bytes."""

    exit_code = 3

    @classmethod
    def within(cls, what: str, requested: int, available: int) -> DoesNotFitError:
        """Return the error of a computation that needs more than `host_memory`."""
        missing = max(1, requested - available)
        # Rounded up: with so much more memory it fits.
        advised = format_size(missing + missing // 100)
        return cls(
            f"{what} needs {format_size(requested)}; host_memory is {format_size(available)}: "
            f"raise it by {advised}",
            requested=requested, available=available, missing=missing,
        )  # fmt: skip


class AllocationError(DoesNotFitError):
    """A device had less memory free than its plan takes: `planned`, in bytes. Nothing ran yet."""


class DeviceError(HdgemmError, RuntimeError):
    """A device's driver refused; the driver's own error is the cause."""


class DeviceUnavailableError(DeviceError):
    """The device asked for is not there or not usable; the message says why."""

    exit_code = 2


class WrongTileError(HdgemmError, ArithmeticError):
    """A device computed a wrong C tile, and again where it could be computed again.

    `tile` is its first row and column and its extents; `row` or `col` the place in C whose sum is
    off by `deviation` and may be by `bound`; `device` its name.
    """


class MatrixIOError(HdgemmError, OSError):
    """Reading or writing a matrix failed: `path`, `offset` and `length` in bytes."""


class CancelledRunError(HdgemmError):
    """The run was cancelled; C is not finished."""

    exit_code = 130


def load_extra(module: str, needed: str, extra: str) -> Any:
    """Import a module of an optional dependency.

    Where it is not installed, raise `InputError`: `needed` ("HDF5 files need h5py"), and the
    `extra` of this package to install.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise InputError(
            f"{needed}, which is not installed: pip install 'hdgemm[{extra}]'"
        ) from error
