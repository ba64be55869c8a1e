"""Which block columns of an LU factorisation the host updates, when it shares them with a device.

The host has the d block columns to the right of the panel. At each step one more moves from the
device to the host, in place of the panel ("Dynamically balanced synchronization-avoiding LU
factorization with multicore and GPUs", sections III and IV). When no more than d columns are left,
the device has none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.tasks.capability import HOST

if TYPE_CHECKING:
    from collections.abc import Callable

    from hdgemm.tasks.block_columns import BlockColumn


def host_share(host_rate: float, device_rate: float) -> float:
    """Return d/N: the part of the block columns with which host and device take equally long.

    Examples
    --------
    >>> round(host_share(403.2, 504.0), 3)
    0.444
    """
    return host_rate / (host_rate + device_rate)


def split_columns(count: int, device: str) -> Callable[[BlockColumn, BlockColumn], str]:
    """Return a function that names the device of a panel's update of a block column.

    Parameters
    ----------
    count
        d: block columns of the host.
    device
        Name of the device that has all others.
    """

    def owner(panel: BlockColumn, column: BlockColumn) -> str:
        return HOST if column.number - panel.number <= count else device

    return owner
