"""Names of NumPy and SciPy that hdgemm does not have, and what to use instead."""

from __future__ import annotations

import sys
from dis import opmap
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hdgemm.errors import nearest_name

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEADING: Final = "hdgemm.linalg.eigsh(a, k) for the leading eigenpairs of a symmetric matrix"
_FITTING: Final = "on an array that fits in memory"
_MEMORY: Final = f"scipy.linalg.{{name}} {_FITTING}"
_NEIGHBOURS: Final = "hdgemm.topk(a, a, k, trans_b=True), the largest products of rows"
_OF_DTYPE: Final = "hdgemm.dgemm, which takes float32, complex64 and complex128, too"
_ARRAY: Final = "the array itself: every call takes arrays, tables and paths of files"
#: Modules whose functions are named where hdgemm has no advice of its own, and names that are none.
_LIBRARIES: Final = ("scipy.linalg", "numpy.linalg", "numpy")
_NO_FUNCTIONS: Final = frozenset({"test", "bench", "info"})
#: Modules with names that are looked for in another module.
_HOMES: Final = ("hdgemm.linalg", "hdgemm.decomposition", "hdgemm")

#: For each name the sentence's end after "use ".
ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "eig": f"{_LEADING}, or {_MEMORY}",
        "eigh": f"{_LEADING}, or {_MEMORY}",
        "eigvals": f"{_LEADING}, or {_MEMORY}",
        "eigvalsh": f"{_LEADING}, or {_MEMORY}",
        "ldl": f"hdgemm.linalg.solve(a, b, assume_a='sym') for a system, or {_MEMORY}",
        "matrix_rank": "hdgemm.linalg.svdvals(a), and count the values above your tolerance",
        "pinvh": "hdgemm.linalg.pinv(a)",
        "orth": "hdgemm.linalg.svd(a), whose leading columns of U span the range",
        "multi_dot": "hdgemm.matmul(a, b) for each product in turn",
        "matrix_power": "hdgemm.matmul(a, a) for each product in turn",
        "matmul": "hdgemm.matmul(a, b)",
        "dot": "hdgemm.matmul(a, b)",
        "einsum": "hdgemm.matmul(a, b) for each product of two matrices",
        "tensordot": "hdgemm.matmul(a, b) of matrices",
        "gemm": "hdgemm.multiply(a, b, out=path), or hdgemm.matmul(a, b)",
        "load": "hdgemm.open(path)",
        "memmap": "hdgemm.open(path)",
        "save": "hdgemm.create(path, ...), and assign to it",
        "empty": "hdgemm.create(path, ...) for a file",
        "zeros": "hdgemm.create(path, ...) for a file",
        "eigs": "hdgemm.linalg.eigsh(a, k) for a symmetric matrix",
        "IncrementalPCA": "hdgemm.decomposition.PCA()",
        "TruncatedSVD": "hdgemm.linalg.svds(a, k)",
        "matrix_norm": "hdgemm.linalg.norm(a)",
        "vector_norm": "hdgemm.linalg.norm(a), for the Frobenius norm",
        "LinAlgError": "hdgemm.linalg.SingularMatrixError, which is a numpy.linalg.LinAlgError",
        "outer": "hdgemm.matmul(x[:, None], y[None, :])",
        "gemv": "hdgemm.matmul(a, x)",
        "sgemm": _OF_DTYPE,
        "cgemm": _OF_DTYPE,
        "zgemm": _OF_DTYPE,
        "randomized_svd": "hdgemm.linalg.svds(a, k)",
        "svd_lowrank": "hdgemm.linalg.svds(a, k)",
        "pca_lowrank": "hdgemm.decomposition.pca(x, k)",
        "lobpcg": _LEADING,
        "lsqr": "hdgemm.linalg.lstsq(a, b)",
        "lsmr": "hdgemm.linalg.lstsq(a, b)",
        "lsq_linear": "hdgemm.linalg.lstsq(a, b), or ridge for a penalty",
        "cg": "hdgemm.linalg.solve(a, b, assume_a='pos')",
        "gmres": "hdgemm.linalg.solve(a, b)",
        "Ridge": "hdgemm.linalg.ridge(a, b, alphas, intercept=True)",
        "LinearRegression": "hdgemm.linalg.ridge(a, b, 0, intercept=True)",
        "NearestNeighbors": _NEIGHBOURS,
        "cosine_similarity": _NEIGHBOURS,
        "array": _ARRAY,
        "asarray": _ARRAY,
        "from_numpy": _ARRAY,
        "transpose": "the .T of an array or of hdgemm.open(path)",
        "random": "the command 'hdgemm random', or hdgemm.create(path, ...), and assign to it",
        "read_csv": "numpy.loadtxt and numpy.save: rows of text have no fixed places in a file",
        "loadtxt": "numpy.loadtxt and numpy.save: rows of text have no fixed places in a file",
        "version": "hdgemm.__version__",
    }
)


def missing(module: str, name: str) -> AttributeError | ImportError:
    """Return the error for a name that `module` does not have; call it from `__getattr__`.

    `from module import name` replaces an AttributeError by an ImportError of its own, without the
    advice; an ImportError reaches the user. For a package it looks the name up in `importlib`
    before.
    """
    what = f"module {module!r} has no attribute {name!r}"
    if (advice := instead_of(module, name)) is not None:
        what = f"{what}: use {advice}"
    elif near := _near(module, name):
        what = f"{what}: did you mean {near}?"
    else:
        return AttributeError(what)
    asking = sys._getframe(2)  # noqa: SLF001 - the caller of __getattr__
    imports = asking.f_code.co_code[asking.f_lasti] == opmap["IMPORT_FROM"]
    if imports or asking.f_globals.get("__name__") == "importlib._bootstrap":
        return ImportError(what, name=module)
    return AttributeError(what, name=name)


def instead_of(module: str, name: str) -> str | None:
    """Return what to use instead of a name that `module` does not have."""
    if name.startswith("_"):
        return None
    for home in _HOMES:
        if home != module and name in _names(home):
            return f"{home}.{name}"
    if name in ADVICE:
        return ADVICE[name].format(name=name)
    for library in _LIBRARIES:
        found = getattr(import_module(library), name, None)
        if callable(found) and name not in _NO_FUNCTIONS:
            whole = f"{library}.{name}"
            return whole if isinstance(found, type) else f"{whole} {_FITTING}"
    return None


def _near(module: str, name: str) -> str | None:
    """Return the public name most like a misspelt one: of `module`, else of another one."""
    if name.startswith("_"):
        return None
    other = {each: f"{home}.{each}" for home in _HOMES for each in _names(home)}
    own, elsewhere = nearest_name(name, _names(module)), nearest_name(name, other)
    return own or (other[elsewhere] if elsewhere else None)


def _names(module: str) -> list[str]:
    found: list[str] = import_module(module).__all__
    return found
