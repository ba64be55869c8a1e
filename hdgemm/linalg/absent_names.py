"""Names of `numpy.linalg` and `scipy.linalg` that hdgemm does not have, and what to use instead."""

from __future__ import annotations

import sys
from importlib import import_module
from types import MappingProxyType
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Mapping

_LEADING: Final = "linalg.eigsh(a, k) for the leading eigenpairs of a symmetric matrix"
_MEMORY: Final = "scipy.linalg.{name} on an array that fits in memory"
#: Packages with functions that are looked for in `hdgemm` itself.
_HOMES: Final = ("linalg", "decomposition")

#: For each name the sentence's end after "use ".
ADVICE: Final[Mapping[str, str]] = MappingProxyType(
    {
        "eig": f"{_LEADING}, or {_MEMORY}",
        "eigh": f"{_LEADING}, or {_MEMORY}",
        "eigvals": f"{_LEADING}, or {_MEMORY}",
        "eigvalsh": f"{_LEADING}, or {_MEMORY}",
        "ldl": f"linalg.solve(a, b, assume_a='sym') for a system, or {_MEMORY}",
        "matrix_rank": "linalg.svdvals(a), and count the values above your tolerance",
        "pinvh": "linalg.pinv(a)",
        "orth": "linalg.svd(a), whose leading columns of U span the range",
        "multi_dot": "hdgemm.matmul(a, b) for each product in turn",
        "matrix_power": "hdgemm.matmul(a, a) for each product in turn",
        "matmul": "hdgemm.matmul(a, b)",
        "matrix_norm": "linalg.norm(a)",
    }
)


def missing(module: str, name: str) -> AttributeError | ImportError:
    """Return the error for a name that `module` does not have; call it from `__getattr__`.

    `from module import name` replaces an AttributeError by an ImportError of its own, without the
    advice. Before that it looks the name up in `importlib`, where an ImportError reaches the user.
    """
    what = f"module {module!r} has no attribute {name!r}"
    advice = _advice(module, name)
    if advice is None:
        return AttributeError(what)
    what = f"{what}: use {advice.format(name=name)}"
    asking = sys._getframe(2).f_globals.get("__name__")  # noqa: SLF001 - the caller of __getattr__
    if asking == "importlib._bootstrap":
        return ImportError(what, name=module)
    return AttributeError(what, name=name)


def _advice(module: str, name: str) -> str | None:
    if name.startswith("_"):
        return None
    if module == "hdgemm":
        for home in _HOMES:
            if name in import_module(f"hdgemm.{home}").__all__:
                return f"{home}.{{name}}"
    if name in ADVICE:
        return ADVICE[name]
    import scipy.linalg

    return _MEMORY if callable(getattr(scipy.linalg, name, None)) else None
