"""One product, checked and immutable: C (m×n) := alpha·op(A)·op(B) + beta·C."""

from __future__ import annotations

import math
import pathlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import InputError
from hdgemm.matrices.base import Operand, Transposed
from hdgemm.matrices.conversion import ExactProduct, WholeNumbers, exact_terms, unwatched
from hdgemm.matrices.device_arrays import DeviceArrayMatrix
from hdgemm.matrices.layout import blas_takes
from hdgemm.matrices.location import Location, parse_location
from hdgemm.matrices.operands import open_operand
from hdgemm.matrices.tile_function import FunctionMatrix, is_tile_function
from hdgemm.pipeline.plan import OperandSpec, Problem, flops_per_multiply_add
from hdgemm.pipeline.slots import Operands
from hdgemm.product.aliasing import overlaps, same_elements
from hdgemm.product.arguments import (
    as_scalar,
    check_out_dtype,
    check_shape,
    check_shapes,
    product_dtypes,
    trans_flags,
)
from hdgemm.product.target import (
    check_location,
    is_location,
    open_target,
    replaced_path,
    result_at,
    single,
)

if TYPE_CHECKING:
    from hdgemm.matrices.base import Matrix
    from hdgemm.pipeline.plan import DeviceSpec

#: Offsets in files and arrays are signed 64-bit numbers.
_MOST_BYTES: Final = 1 << 63


@dataclass(frozen=True, slots=True)
class Product:
    """C := alpha·op(A)·op(B) + beta·old C, with opened and checked operands.

    Parameters
    ----------
    a, b
        op(A), m×k, and op(B), k×n.
    c
        The opened matrix that C is written into; None while C is a file that does not exist yet.
    old
        The C that beta multiplies: `c` itself where C is updated in place; None for beta = 0.
    alpha, beta
        Rounded to `dtype`, as BLAS would see them.
    dtype
        Type of the arithmetic, in native byte order; C may be stored in another.
    c_dtype
        Type of a new C; int64 for an exact product of integers.
    target
        `out` as the caller gave it: an array, a stored matrix or a location.
    """

    a: Operand
    b: Operand
    c: Operand | None
    old: Operand | None
    alpha: complex
    beta: complex
    dtype: np.dtype[Any]
    c_dtype: np.dtype[Any]
    target: Any = None

    @classmethod
    def of(
        cls,
        a: Any,
        b: Any,
        *,
        alpha: Any = 1.0,
        beta: Any = 0.0,
        c: Any = None,
        trans_a: int = False,
        trans_b: int = False,
        out: Any = None,
        dtype: Any = None,
        whole: bool = False,
    ) -> Product:
        """Open and check the arguments of `hdgemm.dgemm`; nothing is read or written.

        `dtype` is C's, None for the default: int64 for a `whole` product of integers that is
        neither scaled nor added to C.

        Raises
        ------
        InputError
            For shapes that do not fit together, and for an `out` that overlaps A or B or, unless
            it is C element for element, a C that is read.
        InputTypeError
            For scalars that are no numbers, and an `out` that cannot hold the product's dtype.
        """
        left = _op(a, "a", trans_a)
        right = _op(b, "b", trans_b)
        out = single(out)
        updates = out is not None and out is c and not is_location(out)
        old = None if c is None else open_operand(c, what="c", writable=updates)
        given = is_tile_function(out)
        place = old if updates else open_target(None if given else out)
        target = None
        if place is None and out is not None and not given:
            target = parse_location(out)
            check_location(target, a, b)
        product = check_product(
            alpha, left, right, beta, old, place or replaced_path(target), dtype, whole=whole
        )
        if place is not None and old is not None and same_elements(place, old):
            old = place
        if given:
            place = Operand(FunctionMatrix(out, product.shape, product.c_dtype))
        elif out is None:
            out = np.empty(product.shape, product.c_dtype)
            place = open_operand(out, what="out", writable=True)
        # An absolute location: the caller may change the working directory during the run.
        return replace(
            product,
            c=place,
            old=old if product.beta != 0 else None,
            target=out if target is None else target,
        ).watched()

    @property
    def m(self) -> int:
        """Rows of op(A) and C."""
        return self.a.shape[0]

    @property
    def n(self) -> int:
        """Columns of op(B) and C."""
        return self.b.shape[1]

    @property
    def k(self) -> int:
        """Columns of op(A), rows of op(B)."""
        return self.a.shape[1]

    @property
    def extents(self) -> tuple[int, int, int]:
        """m, n and k."""
        return *self.shape, self.a.shape[1]

    @property
    def shape(self) -> tuple[int, int]:
        """Rows and columns of C."""
        return self.a.shape[0], self.b.shape[1]

    @property
    def flops(self) -> int:
        """Floating-point operations; a complex multiply-add counts 8."""
        return math.prod(self.extents) * flops_per_multiply_add(self.dtype.name)

    @property
    def reads_product(self) -> bool:
        """Whether A and B are read: not for alpha = 0, nor for k = 0."""
        return self.alpha != 0 and min(self.extents) > 0

    @property
    def reads_c(self) -> bool:
        """Whether the old C is read: not for beta = 0."""
        return self.beta != 0 and min(self.shape) > 0

    @property
    def updates(self) -> bool:
        """Whether C is read where it is written."""
        return self.old is not None and self.old is self.c

    @property
    def destination(self) -> Operand:
        """The opened C."""
        if self.c is None:
            raise InputError(f"C ({self.target}) is not open yet")
        return self.c

    @property
    def storing(self) -> Operand:
        """The opened C as tiles in `dtype` are stored in it."""
        c = self.destination
        return replace(c, matrix=WholeNumbers(c.matrix)) if c.matrix.dtype.kind == "i" else c

    @property
    def folder(self) -> pathlib.Path | None:
        """Folder of its files, C's first; None when all operands are in memory."""
        operands = (self.c, self.a, self.b)
        homes = [x.matrix.home for x in operands if x is not None and x.matrix.home is not None]
        if self.c is None and isinstance(self.target, Location) and not self.target.url:
            homes.insert(0, self.target.path)
        for home in homes:
            folder = home if home.is_dir() else home.parent
            if folder.is_dir():
                return folder
        return None

    def inputs(self) -> dict[str, Operand]:
        """Return the operands that are only read, by letter."""
        found = {"A": self.a, "B": self.b}
        if self.old is not None and not self.updates:
            found["C"] = self.old
        return found

    def watched(self) -> Product:
        """Return it with operands that check, when they are read, that integers stay exact."""
        if self.c_dtype.kind != "i":
            return self
        a, b = ExactProduct.watch(self.k, self.a, self.b)
        return replace(self, a=replace(self.a, matrix=a), b=replace(self.b, matrix=b))

    def unwatched(self) -> Product:
        """Return it with the operands as they are stored, for other processes to watch."""
        a, b = (replace(x, matrix=unwatched(x.matrix)) for x in (self.a, self.b))
        return replace(self, a=a, b=b)

    def stored_in(self, c: Operand) -> Product:
        """Return the same product, written into an opened C."""
        return replace(self, c=c)

    def row_major(self) -> Product:
        """Return the same product with a row-major C: of a column-major one, the transpose."""
        c = self.c
        if c is None or not c.trans:  # a new file is row-major
            return self
        return replace(
            self,
            a=self.b.transposed(),
            b=self.a.transposed(),
            c=c.transposed(),
            old=None if self.old is None else self.old.transposed(),
        )

    def problem(self, device: DeviceSpec) -> Problem:
        """Describe it to the planner; C is row-major, or a file that will be."""
        c = OperandSpec(False, "file", "staged", self.c_dtype.itemsize)
        if self.c is not None:
            in_place = self.old is None or self.old.matrix is self.c.matrix
            c = self._spec(self.c, device, in_place=in_place)
        return Problem(
            *self.extents,
            self.dtype.name,
            self._spec(self.a, device),
            self._spec(self.b, device),
            c,
            reads_c=self.beta != 0,
            exact_terms=self._exact_terms if device.widens else 0,
        )

    @property
    def _exact_terms(self) -> int:
        if self.alpha != 1 or self.dtype != np.float64:
            return 0
        return exact_terms(self.a.matrix.dtype, self.b.matrix.dtype)

    def _spec(self, operand: Operand, device: DeviceSpec, *, in_place: bool = True) -> OperandSpec:
        matrix = operand.matrix
        no_file = isinstance(matrix, (DeviceArrayMatrix, FunctionMatrix))
        resident = in_place and not operand.conj and self._in_reach(matrix, device)
        return OperandSpec(
            operand.trans,
            "memory" if no_file or matrix.array is not None else "file",
            "resident" if resident else "staged",
            matrix.dtype.itemsize,
            matrix.chunk,
            matrix.encoded,
            matrix.chunk_origin,
        )

    def _in_reach(self, matrix: Matrix, device: DeviceSpec) -> bool:
        """Say whether the kernel can take a matrix where it lies."""
        if isinstance(matrix, DeviceArrayMatrix):
            lies_on = matrix.device_array.device
            at_home = device.name == f"cuda:{lies_on or 0}"
            return at_home and matrix.dtype == self.dtype
        return device.unified and blas_takes(matrix.array, self.dtype)

    def operands(self) -> Operands:
        """Return the matrices as the pipeline takes them; C must be row-major."""
        c = self.storing
        old = self.old or c
        return Operands(
            self.a.matrix,
            self.b.matrix,
            c.matrix,
            Transposed(old.matrix) if old.trans else old.matrix,
            conj_a=self.a.conj,
            conj_b=self.b.conj,
            alpha=self.alpha,
            beta=self.beta,
        )

    def result(self) -> Any:
        """Return C as the caller gave it; a .npy file as a read-only memmap, a matrix at any other
        location as a stored matrix that is open for reading.
        """
        return result_at(self.target)


def check_product(
    alpha: Any,
    a: Operand,
    b: Operand,
    beta: Any = 0.0,
    c: Operand | None = None,
    out: Operand | pathlib.Path | None = None,
    wanted: Any = None,
    *,
    whole: bool = False,
) -> Product:
    """Check a whole call by BLAS's rules; nothing is read and nothing is written. Errors as
    `Product.of`.

    alpha and beta are numbers or 0-d arrays, a and b op(A), m×k, and op(B), k×n. `c` is the old C,
    m×n; None stands for zeros, as in SciPy, so that beta is then 0. `out` is the matrix that C is
    written into: `c` itself, another one, a path that is created or replaced, or None for a new
    array. `wanted` and `whole` are `dtype` and `whole` of `Product.of`.
    """
    m, n, _ = check_shapes(a.shape, b.shape)
    stored = tuple(x.matrix.dtype for x in (a, b, c) if x is not None)
    whole = whole and c is None and not isinstance(alpha, complex) and alpha == 1
    computed, c_dtype = product_dtypes(stored, wanted, whole=whole)
    dtype = computed if wanted is None or c_dtype.kind == "i" else c_dtype
    if m * n * dtype.itemsize >= _MOST_BYTES:  # with k = 0, A and B may have none
        raise InputError(
            f"C of {m}×{n} {dtype.name} has {m * n * dtype.itemsize} bytes; it must have fewer "
            "than 2^63",
            m=m,
            n=n,
        )
    product = Product(
        a,
        b,
        out if not isinstance(out, pathlib.Path) else None,
        c,
        alpha=as_scalar(alpha, dtype, "alpha"),
        beta=0.0 if c is None else as_scalar(beta, dtype, "beta"),
        dtype=dtype,
        c_dtype=c_dtype,
    )
    if c is not None:
        check_shape(c.shape, (m, n), "c")
    if out is not None:
        _check_out(out, product)
    return product


def _check_out(out: Operand | pathlib.Path, product: Product) -> None:
    """Check shape, dtype and overlaps of the matrix, or the file, that C is written into."""
    place: Matrix | pathlib.Path
    if isinstance(out, pathlib.Path):
        place = out
    else:
        check_shape(out.shape, product.shape, "out")
        check_out_dtype(out.matrix.dtype, product.c_dtype)
        place = out.matrix
    for operand, what in ((product.a, "a"), (product.b, "b")):
        if overlaps(place, operand.matrix):
            raise InputError(
                f"out overlaps {what} ({operand.matrix.name}), which is still read while C is "
                f"written: write to other memory or another file, or copy {what} first"
            )
    old = product.old
    # A file is replaced when the new C is complete, so its path may name the old C.
    if old is None or not product.reads_c or isinstance(out, pathlib.Path):
        return
    if overlaps(place, old.matrix) and not same_elements(out, old):
        raise InputError(
            "out overlaps c without being the same elements: pass c itself as out, or memory that "
            "c does not use"
        )


def _op(x: Any, what: str, code: int) -> Operand:
    trans, conj = trans_flags(code, f"trans_{what}")
    return open_operand(x, what=what, trans=trans, conj=conj)
