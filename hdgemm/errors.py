"""What can go wrong, each with its numbers as attributes and an exit code for the command line."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Final

from hdgemm.units import format_size, round_up

if TYPE_CHECKING:
    from collections.abc import Iterable


class HdgemmError(Exception):
    """Base of every error this library raises on purpose.

    The numbers behind the message are attributes, and survive pickling between processes.

    See Also
    --------
    InputError, DoesNotFitError : Raised before anything is written.
    DeviceError, MatrixIOError, CancelledRunError : Raised during a run.
    errors : All errors.

    Examples
    --------
    >>> try:
    ...     hdgemm.matmul("A.npy", "missing.npy", out="C.npy")
    ... except hdgemm.HdgemmError as error:
    ...     print(error)
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
    """An operand, an option or a file is not what the call needs.

    See Also
    --------
    InputTypeError : An operand's dtype or kind.
    MatrixIOError : A file that cannot be read or written to its end.
    """

    exit_code = 2


class InputTypeError(InputError, TypeError):
    """An operand's dtype or kind cannot be multiplied, or a keyword is unknown.

    See Also
    --------
    InputError : Its base class, for values.
    """


class InputIndexError(InputError, IndexError):
    """An index outside a matrix: `index`."""


class NotFiniteError(InputError):
    """An operand holds a NaN or an infinity: `row` and `col`."""


class DoesNotFitError(HdgemmError, MemoryError):
    """No plan fits: `requested`, `available` and `missing` are in bytes.

    See Also
    --------
    Options : `host_memory` and `device_memory`.
    plan : The memory of a product before its run.

    Examples
    --------
    >>> small = hdgemm.Options(host_memory="100kB")
    >>> try:
    ...     hdgemm.plan_gemm(65536, 65536, 65536, options=small)
    ... except hdgemm.DoesNotFitError as error:
    ...     print(error.missing)
    """

    exit_code = 3

    @classmethod
    def within(cls, what: str, requested: int, available: int) -> DoesNotFitError:
        """Return the error of a computation that needs more than `host_memory`."""
        missing = max(1, requested - available)
        # Rounded up: with so much more memory it fits.
        needed = round_up(requested)
        advised = format_size(round_up(max(1, needed - available)))
        return cls(
            f"{what} needs {format_size(needed)}; host_memory is {format_size(available)}: "
            f"raise it by {advised}",
            requested=requested,
            available=available,
            missing=missing,
            limit="host_memory",
        )

    @property
    def of_host(self) -> bool:
        """Whether `requested` is what `host_memory` must be, not the memory of a device."""
        return self.numbers.get("limit") == "host_memory"


class AllocationError(DoesNotFitError):
    """A device had less memory free than its plan takes: `planned`, in bytes. Nothing ran yet."""


class DeviceError(HdgemmError, RuntimeError):
    """A device's driver refused; the driver's own error is the cause.

    See Also
    --------
    DeviceUnavailableError : The device was not opened at all.
    check_device : Test that a device computes correctly.
    """


class DeviceUnavailableError(DeviceError):
    """The device asked for is not there or not usable; the message says why.

    See Also
    --------
    devices : Devices of this machine, and why one cannot be used.
    DeviceError : Its base class, for failures during a run.
    """

    exit_code = 2


class WrongTileError(HdgemmError, ArithmeticError):
    """A device computed a wrong C tile, and again where it could be computed again.

    `tile` is its first row and column and its extents; `row` or `col` the place in C whose sum is
    off by `deviation` and may be by `bound`; `device` its name.
    """


class MatrixIOError(HdgemmError, OSError):
    """Reading or writing a matrix failed: `path`, `offset` and `length` in bytes.

    See Also
    --------
    InputError : A file that is missing or holds no matrix.
    """


class CancelledRunError(HdgemmError):
    """The run was cancelled; C is not finished.

    See Also
    --------
    matmul, multiply : `cancel` takes the event that stops a run.
    """

    exit_code = 130


#: Least similarity of a name to a misspelt one, from 0 to 1.
_SIMILAR: Final = 0.7


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the name that a misspelt one is most similar to, whatever its case and underscores."""
    from difflib import get_close_matches

    plain = {each.replace("_", "").casefold(): each for each in known}
    near = get_close_matches(name.replace("_", "").casefold(), plain, n=1, cutoff=_SIMILAR)
    return plain[near[0]] if near else None


#: The extra of this package that installs a library, by the library's module.
_EXTRAS: Final = {
    **dict.fromkeys(
        (
            "alembic",
            "fastapi",
            "httpx",
            "prometheus_client",
            "pydantic",
            "pydantic_settings",
            "sqlalchemy",
            "starlette",
            "uvicorn",
        ),
        "server",
    ),
    "dask": "dask",
    "distributed": "dask",
    "h5py": "hdf5",
    "matplotlib": "plot",
    "mpi4py": "mpi",
    "obstore": "s3",
    "psycopg": "postgres",
    "pyopencl": "opencl",
    "zarr": "zarr",
}


class MissingExtraError(InputError, ImportError):
    """A library that an extra of this package installs is not there: `extra`."""


def installation(extra: str) -> str:
    """Return the command that installs an extra, of the released package and of a clone."""
    return f"pip install 'hdgemm[{extra}]', in a clone pip install '.[{extra}]'"


def load_extra(module: str, needed: str, extra: str) -> Any:
    """Import a module of an optional dependency.

    Where that fails, raise `InputError`: `needed` ("HDF5 files need h5py"), and the `extra` of this
    package to install.
    """
    try:
        return import_module(module)
    except ModuleNotFoundError as error:
        raise _missing(needed, extra) from error
    except ImportError as error:
        raise InputError(f"{needed}, which cannot be imported: {error}") from error


def check_extra(module: str, needed: str, extra: str) -> None:
    """Raise the error of `load_extra` where a module is not installed; import nothing."""
    if find_spec(module) is None:
        raise _missing(needed, extra)


def missing_extra(error: ImportError, user: str) -> MissingExtraError | None:
    """Return the error of `user` ("hdgemm serve") that needs a library which was not found.

    None where the library belongs to no extra, or was found and fails: then its own message helps.
    """
    module = (error.name or "").partition(".")[0]
    if not isinstance(error, ModuleNotFoundError) or module not in _EXTRAS:
        return None
    return _missing(f"{user} needs {module}", _EXTRAS[module])


def _missing(needed: str, extra: str) -> MissingExtraError:
    return MissingExtraError(
        f"{needed}, which is not installed: {installation(extra)}", extra=extra
    )
