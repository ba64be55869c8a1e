"""Options of a run: one frozen value, checked when it is made; sizes are parsed here."""

from __future__ import annotations

import numbers
import operator
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from functools import wraps
from typing import Any, Final, Literal, Self

from hdgemm.errors import InputError, InputTypeError, nearest_name
from hdgemm.tables import Table
from hdgemm.units import format_size

STRATEGIES: Final = ("initial", "double-buffering", "data-reuse", "data-placement", "hybrid")
_UNITS: Final = {
    "": 1,
    "K": 10**3,
    "M": 10**6,
    "G": 10**9,
    "T": 10**12,
    "KI": 2**10,
    "MI": 2**20,
    "GI": 2**30,
    "TI": 2**40,
}
#: Texts of fewer bytes without a unit are taken for a number of other units.
_LEAST_PLAIN: Final = 1 << 20
#: Sizes from here on stand for "no limit" in plans.
_MOST_BYTES: Final = 1 << 62


def parse_size(value: float | str, what: str = "a size") -> int:
    """Turn ``"1.5GB"``, ``"400 MB"``, ``"2GiB"`` or a number into bytes.

    Decimal prefixes are powers of 1000, binary ones (``Ki``, ``Mi``, ``Gi``) of 1024. Fractions of
    a byte are dropped.

    Raises
    ------
    InputError
        When `value`, called `what`, is neither a positive number nor such a text.
    """
    size: float
    if isinstance(value, str):
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]I?)?B?\s*", value.upper())
        if match is None:
            raise InputError(f"{what} is {value!r}: write it like '1.5GB' or '400MiB'")
        size = float(match[1]) * _UNITS[match[2] or ""]
    elif _is_number(value):
        size = value if isinstance(value, int) else float(value)
    else:
        raise InputError(f"{what} must be bytes, or a text like '1.5GB', got {value!r}")
    if not 1 <= size < _MOST_BYTES:
        raise InputError(f"{what} must be at least 1 byte and less than 2**62, got {value!r}")
    return int(size)


def parse_tile(text: str) -> tuple[int, int, int]:
    """Read ``"2048,4096,512"`` as a tile (mb, nb, kb).

    Raises
    ------
    InputError
        For any other text.
    """
    parts = text.replace("x", ",").split(",")
    try:
        mb, nb, kb = (int(part) for part in parts)
    except ValueError:
        raise InputError(
            f"cannot read {text!r} as a tile; write three extents mb,nb,kb like 2048,4096,512"
        ) from None
    return mb, nb, kb


def _parse_verify(text: str) -> bool | str:
    """Read ``"true"``, ``"false"`` or ``"tiles"``; `Options` refuses other texts."""
    return {"true": True, "1": True, "false": False, "0": False}.get(text.lower(), text)


#: How the variables that give defaults are read; the others are texts that `Options` takes.
_PARSERS: Final[Mapping[str, Callable[[str], Any]]] = {
    "devices": lambda text: tuple(text.split(",")),
    "threads": lambda text: int(text) if text.strip().isdecimal() else text,
    "tile": parse_tile,
    "verify": _parse_verify,
}
#: Defaults of `Options`.
BUILT_IN: Final[Mapping[str, Any]] = {
    "devices": "auto",
    "host_memory": None,
    "device_memory": None,
    "threads": None,
    "strategy": "data-placement",
    "tile": None,
    "verify": False,
    "split": None,
}
#: Defaults that `set_options` has set.
_chosen: dict[str, Any] = {}


def has_set_defaults(*, environment: bool = True) -> bool:
    """Say whether `set_options` or, where that is asked for, a variable has set a default."""
    return bool(_chosen) or (
        environment and any(f"HDGEMM_{each.name.upper()}" in os.environ for each in fields(Options))
    )


def _default(name: str, **how: Any) -> Any:
    """Return a field with the default of `set_options`, of ``HDGEMM_NAME``, or the built-in one."""

    def current() -> Any:
        variable = f"HDGEMM_{name.upper()}"
        text = os.environ.get(variable, "")
        if name in _chosen or not text:
            return _chosen.get(name, BUILT_IN[name])
        try:
            value = _PARSERS.get(name, str)(text)
            built_in_options(**{name: value})
        except ValueError as error:
            raise InputError(f"the variable {variable}={text}: {error}") from error
        return value

    return field(default_factory=current, **how)


def _refuses_unknown(options: type[Any]) -> type[Any]:
    """Make the error of an unknown keyword name the nearest option."""
    assign = options.__init__

    @wraps(assign)
    def __init__(self: Any, *args: Any, **given: Any) -> None:  # noqa: N807 - replaces it
        if unknown := sorted(given.keys() - BUILT_IN.keys()):
            near = nearest_name(unknown[0], BUILT_IN)
            hint = f"did you mean {near}? " if near else ""
            raise InputTypeError(
                f"there is no option {', '.join(unknown)}: {hint}see hdgemm.Options"
            )
        assign(self, *args, **given)

    options.__init__ = __init__
    return options


@_refuses_unknown
@dataclass(frozen=True, kw_only=True)
class Options:
    """How a product is to be computed; every field has a default that suits most.

    A field that is not given has the default that `set_options` has set, else the value of the
    variable ``HDGEMM_`` and its name (``HDGEMM_HOST_MEMORY=1.5GB``, ``HDGEMM_DEVICES=host,cuda:0``,
    ``HDGEMM_TILE=2048,4096,512``), else the default that is described here.

    Parameters
    ----------
    devices
        ``"auto"``, one name (``"host"``, ``"opencl:0"``, ``"cuda:0"``) or several; ``"gpu"`` names
        all accelerators, by CUDA where it finds any, else by OpenCL.
    host_memory
        Bytes of anonymous and shared pages that a run may add to its process: tiles, staging,
        buffers, planning (`docs/reference/limits.md`); or a text such as ``"1.5GB"``. None: a part
        of the free memory, inside containers too.
    device_memory
        Bytes the run may hold on each device. None: what the device can hold.
    threads
        Threads for host BLAS and copies. None: the cores this process may use.
    strategy
        How much the pipeline overlaps and reuses (HDGEMM, sections 2 and 3): ``"initial"``,
        ``"double-buffering"``, ``"data-reuse"``, ``"data-placement"`` (the default) or
        ``"hybrid"``.
    tile
        ``(mb, nb, kb)`` forces one tile shape; None lets the planner search.
    verify
        True: check the finished product by Freivalds' method before returning. ``"tiles"``: check
        each C tile by its row and column sums before it is stored, and compute it again where
        they are wrong. On a cluster, the client checks the product, and workers check tiles.
    split
        With several devices, the share of C of each by name, ``{"host": 0.2}``: a fixed split
        gives the same bits each time. None lets the run balance itself.

    See Also
    --------
    set_options : Defaults for the whole process or a block.
    Session : Defaults for several calls, which share opened devices.

    Examples
    --------
    >>> options = hdgemm.Options(host_memory="1.5GB", verify=True)
    >>> c = hdgemm.matmul("A.npy", "B.npy", out="C.npy", options=options)
    """

    devices: str | Sequence[str] = _default("devices")
    host_memory: float | str | None = _default("host_memory")
    device_memory: float | str | None = _default("device_memory")
    threads: int | None = _default("threads")
    strategy: str = _default("strategy")
    tile: tuple[int, int, int] | None = _default("tile")
    verify: bool | Literal["tiles"] = _default("verify")
    # Plans are remembered by their options; a mapping compares, but has no hash.
    split: Mapping[str, float] | None = _default("split", hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", _names(self.devices))
        for name in ("host_memory", "device_memory"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, _memory(value, name))
        if self.strategy not in STRATEGIES:
            raise InputError(
                f"unknown strategy {self.strategy!r}; it must be one of {', '.join(STRATEGIES)}"
            )
        if not isinstance(self.verify, bool) and self.verify != "tiles":
            raise InputError(f"verify must be True, False or 'tiles', got {self.verify!r}")
        if self.threads is not None:
            object.__setattr__(self, "threads", whole_number(self.threads, "threads", bits=31))
        if self.tile is not None:
            object.__setattr__(self, "tile", _tile(self.tile))
        _check_split(self.split)

    def _repr_html_(self) -> str:
        """Return the fields as a table, for a notebook."""
        shown = {each.name: getattr(self, each.name) for each in fields(self)}
        for name in ("host_memory", "device_memory"):
            shown[name] = shown[name] and format_size(shown[name])
        rows = [(name, "default" if value is None else str(value)) for name, value in shown.items()]
        return Table(("option", "value"), rows, "Options", text=True).html()

    @property
    def checks_product(self) -> bool:
        """Whether the finished product is to be checked."""
        return self.verify is True

    @property
    def checks_tiles(self) -> bool:
        """Whether each C tile is to be checked."""
        return self.verify == "tiles"

    @property
    def host_bytes(self) -> int | None:
        """`host_memory` in bytes, once parsed."""
        return self.host_memory if isinstance(self.host_memory, int) else None

    @property
    def device_bytes(self) -> int | None:
        """`device_memory` in bytes, once parsed."""
        return self.device_memory if isinstance(self.device_memory, int) else None


def _memory(value: float | str, name: str) -> int:
    """Return a limit in bytes; a text such as "60" must say its unit."""
    nbytes = parse_size(value, name)
    if isinstance(value, str) and nbytes < _LEAST_PLAIN and re.fullmatch(r"[\d.\s]+", value):
        number = value.strip()
        raise InputError(
            f"{name} is {number!r}, which are bytes: write the unit, '{number}MB' or '{number}GB'"
        )
    return nbytes


def _is_number(value: Any) -> bool:
    return isinstance(value, numbers.Real) and not isinstance(value, bool)


def _names(devices: Any) -> str | tuple[str, ...]:
    if isinstance(devices, str):
        return devices
    try:
        names = tuple(devices)
    except TypeError:
        names = (devices,)
    for name in names:
        if not isinstance(name, str):
            raise InputError(f"devices must be a name or several, like 'host', got {name!r}")
    return names


def whole_number(value: Any, what: str, *, bits: int | None = None) -> int:
    """Return a count or an extent that a caller gave; `bits`: what C code keeps it in."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{what} must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or number < 1:
        raise InputError(f"{what} must be at least 1, got {value!r}")
    if bits is not None and number >= 1 << bits:
        raise InputError(f"{what} must be less than 2**{bits}, got {value!r}")
    return number


def _tile(value: Any) -> tuple[int, int, int]:
    extents = value if isinstance(value, list | tuple) else ()
    if len(extents) != 3:
        raise InputError(f"tile must be three extents (mb, nb, kb), got {value!r}")
    mb, nb, kb = (whole_number(extent, "each extent of tile") for extent in extents)
    return mb, nb, kb


def _check_split(split: Any) -> None:
    if split is None:
        return
    if not isinstance(split, Mapping):
        raise InputError(f"split must map device names to shares of C, got {split!r}")
    for name, share in split.items():
        if not isinstance(name, str) or not _is_number(share):
            raise InputError(f"split must map device names to shares of C, got {name!r}: {share!r}")
        if not 0 <= share <= 1:  # nor NaN
            raise InputError(f"a share of a split must be from 0 to 1, got {name!r}: {share!r}")


def built_in_options(**given: Any) -> Options:
    """Return options whose other fields have the built-in defaults, whatever a user has set."""
    return Options(**{**BUILT_IN, **given})


class set_options:  # noqa: N801 - used like a function
    """Set defaults of `Options` for the whole process, or for a ``with`` block.

    Parameters
    ----------
    **defaults
        Fields of `Options`. Calls without `options`, and `Options` without the field, take them.

    Raises
    ------
    InputError
        When a field of `Options` does not have such a value, or there is no such field.

    See Also
    --------
    Options : The fields, and their other defaults.

    Examples
    --------
    >>> hdgemm.set_options(host_memory="2GB")
    >>> with hdgemm.set_options(devices="host"):
    ...     c = hdgemm.matmul("A.npy", "B.npy")
    """

    def __init__(self, **defaults: Any) -> None:
        Options(**defaults)
        self._before = dict(_chosen)
        _chosen.update(defaults)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        _chosen.clear()
        _chosen.update(self._before)
