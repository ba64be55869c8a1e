"""Memory that the products of a pass over rows take on a device."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy as np

    from hdgemm.pipeline.devices.protocol import FactorDevice
    from hdgemm.pipeline.plan import Operand

#: Page-locked memory of one core, for a device that copies no other memory.
STAGING_BYTES: Final = 4 << 20
#: Panels in which a device adds the lower triangle of A^H·A: it computes 1/_PANELS too much.
_PANELS: Final = 8
#: Columns of such a panel at least: narrower products are slow.
_LEAST_PANEL: Final = 64
#: Operands that some devices multiply in layouts of their own.
_PACKED: Final[tuple[Operand, ...]] = ("A", "B")


class DeviceTile(NamedTuple):
    """Memory of one core on a device.

    Parameters
    ----------
    operand
        C for a row-major matrix; A and B for its copy on a device that packs them.
    rows, cols
        Extents; rows None stands for the rows of a block.
    most
        Rows of a block that are held at once; None for all.
    """

    operand: Operand
    rows: int | None
    cols: int
    most: int | None = None

    def nbytes(self, device: FactorDevice, rows: int, dtype: np.dtype[Any]) -> int:
        """Return its bytes for blocks of so many rows: 0 for a copy on a device that packs nothing.

        A block may be stored as its transpose.
        """
        if self.operand != "C" and not device.packs:
            return 0
        m, n = rows if self.rows is None else self.rows, self.cols
        m = m if self.most is None else min(m, self.most)
        return max(
            device.slot_bytes(self.operand, m, n, dtype),
            device.slot_bytes(self.operand, n, m, dtype),
        )


def sum_panel(n: int) -> int:
    """Return the columns of a panel in which the lower triangle of A^H·A is added."""
    return max(_LEAST_PANEL, -(-n // _PANELS))


def gram_tiles(n: int, most: int | None, *, conjugates: bool) -> tuple[DeviceTile, ...]:
    """Return the memory of a sum A^H·A of n columns, to which so many rows are added at once."""
    rows = DeviceTile("C", None, n, most)
    packed = rows._replace(operand="A"), DeviceTile("B", None, min(n, sum_panel(n)), most)
    return rows, DeviceTile("C", n, n), *packed, *([rows, rows] if conjugates else [])


def product_tiles(n: int, columns: Sequence[int]) -> tuple[DeviceTile, ...]:
    """Return the memory of A·W₁·W₂·... for a block of A with n columns."""
    inner = (n, *columns[:-1])
    factors = [DeviceTile("C", *extents) for extents in zip(inner, columns, strict=True)]
    return (
        DeviceTile("C", None, n),
        *factors,
        *(DeviceTile("C", None, k) for k in columns),
        # Either factor of a product may be its left one.
        *(DeviceTile(operand, None, k) for k in inner for operand in _PACKED),
        *(tile._replace(operand=operand) for tile in factors for operand in _PACKED),
    )


def normal_tiles(n: int, k: int) -> tuple[DeviceTile, ...]:
    """Return the memory of A^H·(A·Q) for a block of A with n columns."""
    return (
        DeviceTile("C", None, n),
        *[DeviceTile("C", n, k)] * 2,
        DeviceTile("C", None, k),
        DeviceTile("A", None, n),
        DeviceTile("B", n, k),
        DeviceTile("B", None, k),
    )
