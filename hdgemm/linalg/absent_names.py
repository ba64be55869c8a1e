"""Names of NumPy and SciPy that hdgemm does not have, and what to use instead."""

from __future__ import annotations

import sys
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

from hdgemm.errors import nearest_name

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEADING: Final = "hdgemm.linalg.eigsh(a, k) for the leading eigenpairs of a symmetric matrix"
_MEMORY: Final = "scipy.linalg.{name} on an array that fits in memory"
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
    }
)


def missing(module: str, name: str) -> AttributeError | ImportError:
    """Return the error for a name that `module` does not have; call it from `__getattr__`.

    `from module import name` replaces an AttributeError by an ImportError of its own, without the
    advice. Before that it looks the name up in `importlib`, where an ImportError reaches the user.
    """
    what = f"module {module!r} has no attribute {name!r}"
    if (advice := instead_of(module, name)) is not None:
        what = f"{what}: use {advice}"
    elif near := _near(module, name):
        what = f"{what}: did you mean {near}?"
    else:
        return AttributeError(what)
    asking = sys._getframe(2).f_globals.get("__name__")  # noqa: SLF001 - the caller of __getattr__
    if asking == "importlib._bootstrap":
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
    import scipy.linalg

    return _MEMORY.format(name=name) if callable(getattr(scipy.linalg, name, None)) else None


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
