"""Widths of a factorisation's panels, from the capabilities of the devices."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from hdgemm.tasks.capability import HOST
from hdgemm.tasks.task import Kernel

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hdgemm.tasks.capability import Capability

#: Widths to choose from.
WIDTHS: Final = (32, 64, 96, 128, 192, 256, 384, 512)
#: Kinds of the tasks that factor a panel, and of the update.
PANELS: Final = {
    "cholesky": ("panel trsm", "gemm"),
    "lu": ("getrf", "gemm"),
    "calu": ("getrf", "gemm"),
    "qr": ("geqrt", "larfb"),
}
#: Flops of a panel of r rows and w columns, and of its update of c columns, as factors of r·w²
#: and of r·w·c.
_FLOPS: Final = {
    "cholesky": (1.0, 1.0),
    "lu": (1.0, 2.0),
    "calu": (2.0, 2.0),
    "qr": (2.0, 4.0),
}
#: Tasks for each block column and panel.
_TASKS: Final = {"cholesky": 1, "lu": 3, "calu": 3, "qr": 1}


def panel_widths(
    name: str, shape: tuple[int, int], capabilities: Sequence[Capability], itemsize: int = 8
) -> tuple[int, ...]:
    """Return the widths of all block columns, the fastest for the rest of the matrix at each step.

    Panels are factored beside the update, so that a step takes as long as the longer of both. Wide
    panels make updates deep and few, narrow ones end early: as the rest of the matrix shrinks, the
    panels get narrower (Dongarra et al., section 6.7.3).
    """
    m, n = shape
    widths = []
    first = 0
    while first < n:
        rows, cols = m - first, n - first
        if rows <= 0:
            widths.append(cols)
            break
        most = min(rows, cols)
        choices = [width for width in WIDTHS if width < most] or [most]
        width = min(
            choices, key=lambda w: _seconds(name, rows, cols, w, capabilities, itemsize) / w
        )
        widths.append(width)
        first += width
    return tuple(widths)


def _seconds(
    name: str, rows: int, cols: int, width: int, capabilities: Sequence[Capability], itemsize: int
) -> float:
    """Return the time of one step: of its panel, or of its update on all devices together."""
    panel_kind, update_kind = PANELS[name]
    panel_factor, update_factor = _FLOPS[name]
    panel_flops = int(panel_factor * rows * width**2)
    host = next(each for each in capabilities if each.name == HOST)
    panel = host.seconds(Kernel(panel_kind, panel_flops, width))
    links = [min(each.up, each.down) for each in capabilities if each.name != HOST]
    if links:
        panel += 2 * rows * width * itemsize / min(links)
    update_flops = int(update_factor * rows * width * max(0, cols - width))
    update = Kernel(update_kind, update_flops, width)
    rate = 0.0
    latency = _TASKS[name] * (cols / width) * max(each.latency for each in capabilities)
    for each in capabilities:
        if each.runs(update_kind) and update_flops:
            rate += each.lanes * update_flops / (each.seconds(update) - each.latency)
    work = update_flops / rate if rate else 0.0
    if len(capabilities) == 1:  # the panel takes a lane from the update
        work += panel / host.lanes
    return max(panel, work + latency)
