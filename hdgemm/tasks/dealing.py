"""Which device updates a block column: columns dealt by weight, or a window of the host that moves.

In the second case the host has the d block columns to the right of the panel. At each step one more
moves from its device to the host, in place of the panel ("Dynamically balanced
synchronization-avoiding LU factorization with multicore and GPUs", sections III and IV). When no
more than d columns are left, the devices have none.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from hdgemm.tasks.capability import HOST

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.tasks.block_columns import BlockColumn, Owner
    from hdgemm.tasks.capability import Capability
    from hdgemm.tasks.task import Kernel


def deal(columns: int, weights: Mapping[str, float]) -> list[str]:
    """Deal block columns in proportion to weights (HGDD; Dongarra et al., section 6.6).

    Each column goes to the device with the largest remaining weight, so that devices alternate.
    Equal weights give the uniform block-cyclic distribution.
    """
    total = sum(weights.values())
    remaining = dict.fromkeys(weights, 0.0)
    owners = []
    for _ in range(columns):
        for name, weight in weights.items():
            remaining[name] += weight / total
        # Rounding must not decide between equal weights.
        owner = max(remaining, key=lambda name: (round(remaining[name], 9), weights[name]))
        remaining[owner] -= 1
        owners.append(owner)
    return owners


def update_weights(
    capabilities: Sequence[Capability], update: Kernel, panel_share: float, panel_kind: str
) -> dict[str, float]:
    """Return the share of the updates that each device takes; the host factors the panels, too.

    Parameters
    ----------
    update
        A typical update.
    panel_share
        Flops of all panels, relative to those of all updates.
    panel_kind
        Kind of the tasks that factor a panel.
    """
    rates = {
        each.name: each.lanes * update.flops / each.seconds(update)
        for each in capabilities
        if each.runs(update.kind)
    }
    host = next((each for each in capabilities if each.name == HOST), None)
    if host is None or HOST not in rates or len(rates) == 1:
        return rates
    panel_seconds = panel_share / host.rates[panel_kind]
    seconds = (1 + rates[HOST] * panel_seconds) / sum(rates.values())
    rates[HOST] *= max(0.0, 1 - panel_seconds / seconds)
    return {name: rate for name, rate in rates.items() if rate > 0}


def split_columns(count: int, owners: Sequence[str]) -> Owner:
    """Return a function that names the device of a panel's update of a block column.

    Parameters
    ----------
    count
        d: block columns of the host.
    owners
        The device of each block column that the host does not have.
    """

    def owner(panel: BlockColumn, column: BlockColumn) -> str:
        return HOST if column.number - panel.number <= count else owners[column.number]

    return owner
