"""Errors of keywords that a public call does not have, with the name that was probably meant."""

from __future__ import annotations

import inspect
from functools import wraps
from typing import TYPE_CHECKING, Any, TypeVar, cast

from hdgemm.errors import InputTypeError, nearest_name
from hdgemm.options import BUILT_IN

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping

_F = TypeVar("_F", bound="Callable[..., Any]")


def refuses_unknown(function: _F) -> _F:
    """Make the error of a keyword that a function or a class does not have name the nearest one.

    The signature stays. For functions without ``**keywords``; `public_call` does the same for
    others. In the error the constructor of a class has the name of the class.
    """
    name = function.__qualname__.removesuffix(".__init__")
    if isinstance(function, type):
        constructed: Any = function
        constructed.__init__ = _checked(constructed.__init__, name)
        return function
    return _checked(function, name)


def _checked(function: _F, name: str) -> _F:
    known = inspect.signature(function).parameters.keys()

    @wraps(function)
    def call(*args: Any, **keywords: Any) -> Any:
        if keywords.keys() - known:
            raise unknown_keyword(name, keywords, known)
        return function(*args, **keywords)

    return cast("_F", call)


def unknown_keyword(
    function: str, keywords: Mapping[str, Any], known: Collection[str]
) -> InputTypeError:
    """Return the error of keywords of which a function does not have one at least."""
    name = min(keywords.keys() - known)
    options = BUILT_IN if "options" in known else {}
    if name in options:
        return InputTypeError(
            f"{name} is no keyword of {function}, but an option: write "
            f"options=hdgemm.Options({name}={keywords[name]!r})"
        )
    what = f"{function}() got an unexpected keyword argument {name!r}"
    near = nearest_name(name, [*known, *options])
    if near is None:
        return InputTypeError(what)
    option = f"options=hdgemm.Options({near}={keywords[name]!r})"
    return InputTypeError(f"{what}: did you mean {near if near in known else option}?")
