"""The one frozen settings object; sizes are parsed once, here."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final, Literal

from hdgemm.errors import InputError

if TYPE_CHECKING:
    from collections.abc import Mapping

STRATEGIES: Final = ("initial", "double-buffering", "data-reuse", "data-placement", "hybrid")
_UNITS: Final = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12,
                 "KI": 2**10, "MI": 2**20, "GI": 2**30, "TI": 2**40}  # fmt: skip


def parse_size(value: int | str) -> int:
    """Turn ``"1.5GB"``, ``"400 MB"``, ``"2GiB"`` or a number into bytes.

    Decimal prefixes are powers of 1000, binary ones (``Ki``, ``Mi``, ``Gi``) of 1024.

    Raises
    ------
    InputError
        When the text is no size, or not positive.
    """
    if isinstance(value, bool):
        raise InputError(f"a size in bytes must be a number or a text like '1.5GB', got {value!r}")
    if isinstance(value, int):
        size = value
    else:
        match = re.fullmatch(r"\s*(\d+(?:\.\d*)?|\.\d+)\s*([KMGT]I?)?B?\s*", value.upper())
        if match is None:
            raise InputError(f"cannot read {value!r} as a size; write it like '1.5GB' or '400MiB'")
        size = int(float(match[1]) * _UNITS[match[2] or ""])
    if size <= 0:
        raise InputError(f"a size must be positive, got {value!r}")
    return size


@dataclass(frozen=True, kw_only=True)
class Options:
    """How a product is to be computed; every field has a default that suits most.

    Parameters
    ----------
    devices
        ``"auto"``, one name (``"host"``, ``"opencl:0"``, ``"cuda:0"``) or several.
    host_memory
        Bytes the run may add to the process (staging, tiles, page cache), or a text such as
        ``"1.5GB"``. None: a sensible part of what is free, inside containers too.
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
    host_memory: int | str | None = None
    device_memory: int | str | None = None
    threads: int | None = None
    strategy: str = "data-placement"
    tile: tuple[int, int, int] | None = None
    verify: bool | Literal["tiles"] = False
    # Plans are remembered by their options; a mapping compares, but has no hash.
    split: Mapping[str, float] | None = field(default=None, hash=False)

    def __post_init__(self) -> None:
        if not isinstance(self.devices, str):
            object.__setattr__(self, "devices", tuple(self.devices))
        for name in ("host_memory", "device_memory"):
            value = getattr(self, name)
            if value is not None:
                object.__setattr__(self, name, parse_size(value))
        if self.strategy not in STRATEGIES:
            raise InputError(
                f"unknown strategy {self.strategy!r}; it must be one of {', '.join(STRATEGIES)}"
            )
        if self.verify not in (True, False, "tiles"):
            raise InputError(f"verify must be True, False or 'tiles', got {self.verify!r}")
        if self.verify != "tiles":
            object.__setattr__(self, "verify", bool(self.verify))
        if self.threads is not None and self.threads < 1:
            raise InputError(f"threads must be at least 1, got {self.threads}")
        if self.tile is not None:
            tile = tuple(int(extent) for extent in self.tile)
            if len(tile) != 3 or min(tile) < 1:
                raise InputError(f"tile must be three positive extents (mb, nb, kb), got {tile}")
            object.__setattr__(self, "tile", tile)

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
