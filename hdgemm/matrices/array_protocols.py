"""NumPy's protocols on stored matrices: `@`, ufuncs and functions, computed by the rooms above.

The operations are registered by the module that has them; it is imported at the first use.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Never, Protocol, overload

import numpy as np

from hdgemm.errors import InputTypeError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from typing import TypeAlias

    from numpy.typing import NDArray

    #: Factors that give a product as an array; other libraries may compute theirs themselves.
    Factor: TypeAlias = "NDArray[Any] | Sequence[Any] | ArrayProtocols"

#: The module that registers the operations.
_PROVIDER: Final = "hdgemm.array_functions"
#: Operators that nothing computes out of core, by their ufunc. ``==`` and ``!=`` compare objects.
_REFUSED: Final = {
    "add": ("add", "radd"),
    "subtract": ("sub", "rsub"),
    "divide": ("truediv", "rtruediv"),
    "floor_divide": ("floordiv", "rfloordiv"),
    "remainder": ("mod", "rmod"),
    "divmod": ("divmod", "rdivmod"),
    "power": ("pow", "rpow"),
    "bitwise_and": ("and", "rand"),
    "bitwise_or": ("or", "ror"),
    "bitwise_xor": ("xor", "rxor"),
    "left_shift": ("lshift", "rlshift"),
    "right_shift": ("rshift", "rrshift"),
    "negative": ("neg",),
    "positive": ("pos",),
    "absolute": ("abs",),
    "invert": ("invert",),
    "less": ("lt",),
    "less_equal": ("le",),
    "greater": ("gt",),
    "greater_equal": ("ge",),
}

#: Advice for operations that are not computed out of core.
_ADVICE: Final = (
    "use numpy.asarray(M) where the matrix fits the memory, M.blocks() for parts of it, or "
    "dask.array.from_array(M)"
)
#: Advice for methods of NumPy's arrays that a stored matrix has under another name.
_INSTEAD: Final = {"dot": "write M @ x", "transpose": "write M.T"}


class Operations(Protocol):
    """Operations on stored matrices and arrays, out of core."""

    def multiply(self, a: Any, b: Any, out: Any = None) -> Any:
        """Return the matrix product A·B."""

    def scale(self, matrix: Any, factor: Any, out: Any = None) -> Any:
        """Return a matrix times a number."""

    def function(self, function: Callable[..., Any]) -> Callable[..., Any] | None:
        """Return what computes a function of NumPy; None for functions that nothing computes."""


_registered: list[Operations] = []


def register(operations: Operations) -> None:
    """Set the operations of stored matrices."""
    _registered[:] = [operations]


def _operations() -> Operations:
    if not _registered:
        import_module(_PROVIDER)
    return _registered[0]


class _OfType:
    """A method that is found on the type only, as NumPy looks for its protocols.

    Dask and others ask an instance, and take blocks of one that has the protocols for arrays: they
    are to call `numpy.asarray`.
    """

    def __init__(self, method: Callable[..., Any]) -> None:
        self._method = method
        self.__doc__ = method.__doc__

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, instance: object, owner: type) -> Callable[..., Any]:
        if instance is not None:
            raise AttributeError(self._name, name=self._name, obj=instance)
        return self._method


class ArrayProtocols:
    """Operators and protocols of NumPy for a matrix that is not in memory."""

    @overload
    def __matmul__(self, other: Factor) -> NDArray[Any]: ...
    @overload
    def __matmul__(self, other: Any) -> Any: ...
    def __matmul__(self, other: Any) -> Any:
        return NotImplemented if _refuses(other) else _operations().multiply(self, other)

    @overload
    def __rmatmul__(self, other: Factor) -> NDArray[Any]: ...
    @overload
    def __rmatmul__(self, other: Any) -> Any: ...
    def __rmatmul__(self, other: Any) -> Any:
        return NotImplemented if _refuses(other) else _operations().multiply(other, self)

    @overload
    def __mul__(self, other: complex | np.number[Any]) -> NDArray[Any]: ...
    @overload
    def __mul__(self, other: Any) -> Any: ...
    def __mul__(self, other: Any) -> Any:
        return NotImplemented if _refuses(other) else np.multiply(self, other)  # type: ignore[call-overload]

    __rmul__ = __mul__

    @_OfType
    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **keywords: Any) -> Any:
        """Compute products and multiples out of core; refuse every other ufunc."""
        if _foreign(type(x) for x in inputs if hasattr(type(x), "__array_ufunc__")):
            return NotImplemented
        (out,) = keywords.pop("out", (None,))
        if method != "__call__" or keywords or ufunc not in (np.matmul, np.multiply):
            raise _refusal(
                f"numpy.{ufunc.__name__}" + ("" if method == "__call__" else "." + method)
            )
        if ufunc is np.matmul:
            return _operations().multiply(inputs[0], inputs[1], out)
        matrix, factor = inputs if isinstance(inputs[0], ArrayProtocols) else inputs[::-1]
        if np.ndim(factor) != 0:
            raise _refusal("numpy.multiply of two matrices")
        return _operations().scale(matrix, factor, out=out)

    @_OfType
    def __array_function__(
        self,
        function: Callable[..., Any],
        types: Iterable[type],
        args: tuple[Any, ...],
        keywords: Mapping[str, Any],
    ) -> Any:
        """Compute what hdgemm has out of core; refuse every other function."""
        if _foreign(types):
            return NotImplemented
        found = _operations().function(function)
        if found is None:
            raise _refusal(f"{function.__module__}.{function.__name__}")
        return found(*args, **keywords)

    if not TYPE_CHECKING:  # a type checker would take every name for present

        def __getattr__(self, name: str) -> Never:
            """Say what to use instead of a method of NumPy's arrays."""
            what = f"{type(self).__name__!r} object has no attribute {name!r}"
            if not name.startswith("_") and hasattr(np.ndarray, name):
                what = f"{what}: {_INSTEAD.get(name, _ADVICE)}"
            raise AttributeError(what, name=name, obj=self)


def _refusing(name: str) -> Callable[..., Any]:
    """Return the operator that raises a ufunc's refusal, unless another library may compute it."""

    def operator(_self: ArrayProtocols, *others: Any) -> Any:
        if _foreign(type(x) for x in others if hasattr(type(x), "__array_ufunc__")):
            return NotImplemented
        raise _refusal(f"numpy.{name}")

    return operator


for _name, _operators in _REFUSED.items():
    for _operator in _operators:
        setattr(ArrayProtocols, f"__{_operator}__", _refusing(_name))


def _foreign(types: Iterable[type]) -> bool:
    """Say whether another library's arrays take part: it may know what to do."""
    return any(not issubclass(each, np.ndarray | np.generic | ArrayProtocols) for each in types)


def _refuses(other: Any) -> bool:
    """Say whether an operand's own operator is to be asked, as NumPy's arrays do."""
    return getattr(other, "__array_ufunc__", False) is None


def _refusal(what: str) -> InputTypeError:
    return InputTypeError(f"{what} is not computed out of core: {_ADVICE}")
