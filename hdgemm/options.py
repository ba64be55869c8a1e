"""Options of a run: one frozen value, checked when it is made; sizes are parsed here."""

from __future__ import annotations

import numbers
import operator
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from hdgemm.errors import InputError

STRATEGIES: Final = ("initial", "double-buffering", "data-reuse", "data-placement", "hybrid")
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
                 "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}  # fmt: skip
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


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a product is to be computed; every field has a default that suits most.

    Parameters
    ----------
    devices
        ``"auto"``, one name (``"host"``, ``"opencl:0"``, ``"cuda:0"``) or several.
    host_memory
        Bytes of anonymous and shared pages that a run may add to its process: tiles, staging,
        buffers, planning (`docs/reference/limits.md`); or a text such as ``"1.5GB"``. None: a part
        of the free memory, inside containers too.
    device_memory
        Bytes the run may hold on each device. None: what the device can hold.
    threads
        Threads for host BLAS and copies. None: the cores this process may use.
    strategy
        One step of the paper's ladder (HDGEMM, sections 2 and 3); see `STRATEGIES`.
    tile
        ``(mb, nb, kb)`` forces one tile shape; None lets the planner search.
    verify
        True: check the finished product by Freivalds' method before returning. ``"tiles"``: check
        each C tile by its row and column sums before it is stored, and compute it again where
        they are wrong.
    split
        With several devices, the share of C of each by name, ``{"host": 0.2}``: a fixed split
        gives the same bits each time. None lets the run balance itself.
    """

    devices: str | tuple[str, ...] = "auto"
    host_memory: float | str | None = None
    device_memory: float | str | None = None
    threads: int | None = None
    strategy: str = "data-placement"
    tile: tuple[int, int, int] | None = None
    verify: bool | Literal["tiles"] = False
    # Plans are remembered by their options; a mapping compares, but has no hash.
    split: Mapping[str, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "devices", _names(self.devices))
        for name in ("host_memory", "device_memory"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, parse_size(value, name))
        if self.strategy not in STRATEGIES:
            raise InputError(
                f"unknown strategy {self.strategy!r}; it must be one of {', '.join(STRATEGIES)}"
            )
        if not isinstance(self.verify, bool) and self.verify != "tiles":
            raise InputError(f"verify must be True, False or 'tiles', got {self.verify!r}")
        if self.threads is not None:
            object.__setattr__(self, "threads", _count(self.threads, "threads"))
        if self.tile is not None:
            object.__setattr__(self, "tile", _tile(self.tile))
        _check_split(self.split)

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


def _count(value: Any, what: str) -> int:
    """Return a positive whole number."""
    try:
        number = operator.index(value)
    except TypeError:
        raise InputError(f"{what} must be a whole number, got {value!r}") from None
    if isinstance(value, bool) or number < 1:
        raise InputError(f"{what} must be at least 1, got {value!r}")
    return number


def _tile(value: Any) -> tuple[int, int, int]:
    extents = value if isinstance(value, list | tuple) else ()
    if len(extents) != 3:
        raise InputError(f"tile must be three extents (mb, nb, kb), got {value!r}")
    mb, nb, kb = (_count(extent, "each extent of tile") for extent in extents)
    return mb, nb, kb


def _check_split(split: Any) -> None:
    if split is None:
        return
    if not isinstance(split, Mapping):
        raise InputError(f"split must map device names to shares of C, got {split!r}")
    for name, share in split.items():
        if not isinstance(name, str) or not _is_number(share):
            raise InputError(f"split must map device names to shares of C, got {name!r}: {share!r}")
