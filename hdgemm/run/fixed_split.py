"""Fixed split of C: the rows that each device computes, from shares that the caller gives."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from hdgemm.errors import InputError
from hdgemm.pipeline.plan import Rect

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


def fixed_regions(
    m: int, n: int, split: Mapping[str, float] | None, names: Sequence[str]
) -> dict[str, Rect] | None:
    """Cut C into bars by the caller's shares; None leaves the split to the pool.

    Parameters
    ----------
    split
        Share of C by device name. Devices that are not named share what is left equally; shares
        are cut at whole rows.

    Raises
    ------
    InputError
        When a name is not among the devices, or shares do not add up.
    """
    if split is None:
        return None
    unknown = [name for name in split if name not in names]
    if unknown:
        raise InputError(f"split names {', '.join(unknown)}; the devices are {', '.join(names)}")
    given = sum(split.values())
    rest = [name for name in names if name not in split]
    if (
        not math.isfinite(given)
        or min(split.values(), default=0.0) < 0
        or given > 1 + 1e-9
        or (not rest and given < 1 - 1e-9)
    ):
        raise InputError(f"the shares of a split must add up to 1, got {dict(split)}")
    shares = {name: split.get(name, (1 - given) / max(1, len(rest))) for name in names}
    regions, row, total = {}, 0, 0.0
    for name in names:
        total += shares[name]
        last = m if name == names[-1] else min(m, round(total * m))
        regions[name] = Rect(row, 0, last - row, n)
        row = last
    return regions
