"""A correctness test of one device: every dtype, strategy, transposition, beta and path."""

from __future__ import annotations

import time
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from itertools import product
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple

import numpy as np

from hdgemm.blas.products import multiply
from hdgemm.dtypes import SUPPORTED
from hdgemm.errors import CancelledRunError, DeviceUnavailableError, HdgemmError
from hdgemm.options import STRATEGIES, Options
from hdgemm.pipeline.devices.registry import list_devices
from hdgemm.run.operand_paths import ReachesHostMemory
from hdgemm.run.session import Session
from hdgemm.unknown_keywords import refuses_unknown

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import Device

#: Extents and tile of every product: several tiles each way, those at the edges smaller.
_EXTENTS: Final = (150, 130, 170)
_TILE: Final = (64, 64, 64)
_DTYPES: Final = SUPPORTED
#: Of the ladder, those that run on one device.
_LADDER: Final = STRATEGIES[:4]

Memory = Literal["plain", "page-locked"]


@dataclass(frozen=True, slots=True)
class CheckedGroup:
    """Products that differ in transposition, beta and the order of C only.

    Parameters
    ----------
    dtype, strategy
        The dtype and the strategy of the products.
    memory
        Where the arrays are: in ``"plain"`` or in ``"page-locked"`` memory.
    products
        The number of products.
    worst
        Largest error of an element, in units of ``(k + 2)·eps·(|alpha|·|A|·|B| + |beta|·|C|)``,
        three times that for complex dtypes; a correct product stays below 1.
    failure
        The first wrong product or error; empty where there was none.

    See Also
    --------
    DeviceCheck : Has a group for each kind of product.

    Examples
    --------
    >>> check = hdgemm.check_device("host")
    >>> max(group.worst for group in check.groups) < 1
    True
    """

    dtype: str
    strategy: str
    memory: Memory
    products: int
    worst: float
    failure: str = ""

    @property
    def passed(self) -> bool:
        """Whether all products are correct."""
        return not self.failure


@dataclass(frozen=True, slots=True)
class DeviceCheck:
    """The outcome of `check_device`; it is true where all products are correct.

    Parameters
    ----------
    device, description
        Name and description of the device.
    groups
        The `CheckedGroup` of each kind of product.
    seconds
        Duration of the check.

    See Also
    --------
    check_device : Returns it.

    Examples
    --------
    >>> assert hdgemm.check_device("host")
    """

    device: str
    description: str
    groups: tuple[CheckedGroup, ...]
    seconds: float

    @property
    def passed(self) -> bool:
        """Whether all products of all groups are correct."""
        return all(group.passed for group in self.groups)

    def __bool__(self) -> bool:
        return self.passed

    def to_dict(self) -> dict[str, Any]:
        """Return the outcome as plain values."""
        return {**asdict(self), "passed": self.passed}


@refuses_unknown
def check_device(
    name: str,
    *,
    progress: Callable[[CheckedGroup], None] | None = None,
    cancel: threading.Event | None = None,
) -> DeviceCheck:
    """Multiply small matrices on a device in every way it offers, and judge them against NumPy.

    Parameters
    ----------
    name
        ``"host"``, ``"opencl:0"``, ``"cuda:0"``.
    progress
        Called with each group when it is done.
    cancel
        Set it to stop the check after the group that runs.

    Returns
    -------
    DeviceCheck
        One group of results for each kind of product, with the largest error.

    Raises
    ------
    DeviceUnavailableError
        When there is no such device, or it cannot be used.
    CancelledRunError
        When `cancel` was set.

    See Also
    --------
    devices : Names of the devices of this machine.

    Examples
    --------
    >>> check = hdgemm.check_device("host")
    >>> print(check)
    """
    began = time.perf_counter()
    groups = []
    with Session(Options(devices=name, tile=_TILE)) as session:
        device = session.device(name, session.options)
        memories: tuple[Memory, ...] = ("plain",)
        if _takes_page_locked(device):
            memories = ("plain", "page-locked")
        for dtype in _dtypes(session, name):
            case = _Operands.random(dtype)
            for strategy, memory in product(_LADDER, memories):
                if cancel is not None and cancel.is_set():
                    raise CancelledRunError(f"the check of {name} was cancelled")
                groups.append(_check_group(session, device, case, strategy, memory))
                if progress is not None:
                    progress(groups[-1])
    known = {info.name: info.description for info in list_devices()}
    return DeviceCheck(name, known.get(name, ""), tuple(groups), time.perf_counter() - began)


class _Operands(NamedTuple):
    """op(A), op(B), C and the factors, with the exact product and the unit of its error."""

    dtype: np.dtype[Any]
    a: NDArray[Any]
    b: NDArray[Any]
    c: NDArray[Any]
    alpha: complex
    beta: complex
    exact: NDArray[Any]
    size: NDArray[Any]

    @classmethod
    def random(cls, name: str) -> _Operands:
        """Draw operands of a dtype."""
        m, n, k = _EXTENTS
        dtype = np.dtype(name)
        rng = np.random.default_rng(4)
        parts = 2 if dtype.kind == "c" else 1
        drawn = [
            rng.standard_normal((rows, cols * parts)).astype(dtype.char.lower()).view(dtype)
            for rows, cols in ((m, k), (k, n), (m, n))
        ]
        a, b, c = drawn
        alpha, beta = (1.25 + 0.5j, 0.5 - 0.25j) if parts == 2 else (1.25, 0.5)
        wide = np.clongdouble if parts == 2 else np.longdouble
        exact = np.asarray(alpha, wide) * (a.astype(wide) @ b.astype(wide))
        size = abs(alpha) * (np.abs(a).astype(np.longdouble) @ np.abs(b).astype(np.longdouble))
        return cls(dtype, a, b, c, alpha, beta, exact, size)

    def error(self, result: NDArray[Any], beta: complex) -> float:
        """Return the largest error of an element in units of its bound; infinite for NaN."""
        unit = (3 if self.dtype.kind == "c" else 1) * (_EXTENTS[2] + 2) * np.finfo(self.dtype).eps
        exact, size = self.exact, self.size
        if beta:
            exact = exact + np.asarray(beta, exact.dtype) * self.c
            size = size + abs(beta) * np.abs(self.c)
        errors = np.abs(result - exact) / (unit * size)
        return float("inf") if np.isnan(errors).any() else float(errors.max())


class _Way(NamedTuple):
    """The arguments of one product: BLAS's codes of transposition, beta, and C's storage order."""

    trans_a: int
    trans_b: int
    beta: complex
    c_order: str


def _check_group(
    session: Session, device: Device, case: _Operands, strategy: str, memory: Memory
) -> CheckedGroup:
    codes = (0, 1, 2) if case.dtype.kind == "c" else (0, 1)
    ways = [_Way(*one) for one in product(codes, codes, (0.0, case.beta), ("C", "F"))]
    worst, failure = 0.0, ""
    for way in ways:
        try:
            error = _error_of(session, device, case, strategy, memory, way)
        except HdgemmError as raised:
            failure = failure or f"{way}: {raised}".removeprefix("_Way")
            continue
        worst = max(worst, error)
        if error >= 1:
            failure = failure or f"{way}: error {error:.3g}".removeprefix("_Way")
    return CheckedGroup(case.dtype.name, strategy, memory, len(ways), worst, failure)


def _error_of(
    session: Session, device: Device, case: _Operands, strategy: str, memory: Memory, way: _Way
) -> float:
    """Multiply one way; return the largest error in units of its bound."""
    options = Options(devices=device.spec.name, tile=_TILE, strategy=strategy)
    with _copies(device, memory) as copy:
        a, b = copy(_stored(case.a, way.trans_a)), copy(_stored(case.b, way.trans_b))
        # beta = 0 must not read C.
        old = case.c if way.beta else np.full_like(case.c, np.nan)
        c = copy(old.T).T if way.c_order == "F" else copy(old)
        report = multiply(
            a,
            b,
            alpha=case.alpha,
            beta=way.beta,
            c=c if way.beta else None,
            out=c,
            trans_a=way.trans_a,
            trans_b=way.trans_b,
            options=options,
            session=session,
        )
        paths = report.plan["paths"]
        staged = [name for name in ("A", "B") if paths[name] == "staged"]
        if memory == "page-locked" and staged and 2 not in way[:2]:
            raise HdgemmError(f"page-locked {' and '.join(staged)} went through staging")
        return case.error(c, way.beta)


def _stored(x: NDArray[Any], trans: int) -> NDArray[Any]:
    """Return the matrix X whose op(X) by BLAS's code is `x`."""
    return (x, x.T, x.T.conj())[trans]


@contextmanager
def _copies(device: Device, memory: Memory) -> Iterator[Callable[[NDArray[Any]], NDArray[Any]]]:
    """Yield a function that copies an array into plain or page-locked memory."""
    held = []

    def copy(x: NDArray[Any]) -> NDArray[Any]:
        if memory == "plain":
            return x.copy()
        held.append(device.allocate_staging(x.nbytes))
        array = np.ndarray(x.shape, x.dtype, held[-1].array)
        array[...] = x
        return array

    try:
        yield copy
    finally:
        while held:
            device.free(held.pop())


def _takes_page_locked(device: Device) -> bool:
    """Say whether page-locked memory makes a difference to a device."""
    if not isinstance(device, ReachesHostMemory) or device.reaches(np.empty(1)):
        return False
    staging = device.allocate_staging(1)
    reached = device.reaches(staging.array)
    device.free(staging)
    return reached


def _dtypes(session: Session, name: str) -> list[str]:
    """Return the dtypes that a device multiplies; OpenCL devices may lack double precision."""
    found = []
    for dtype in _DTYPES:
        try:
            multiply(
                np.ones((1, 1), dtype),
                np.ones((1, 1), dtype),
                out=np.empty((1, 1), dtype),
                options=Options(devices=name),
                session=session,
            )
        except DeviceUnavailableError:
            continue
        found.append(dtype)
    return found
