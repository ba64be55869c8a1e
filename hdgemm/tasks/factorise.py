"""Factorisations of arrays in RAM by tasks, on the host and on opened devices."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.tasks.algorithms import ALGORITHMS, finish_pivots
from hdgemm.tasks.block_columns import BlockColumns, even_widths
from hdgemm.tasks.capability import HOST, Capability
from hdgemm.tasks.dealing import host_share, split_columns, update_weights
from hdgemm.tasks.panel_widths import PANELS, panel_widths
from hdgemm.tasks.runtime import Runtime
from hdgemm.tasks.task import Kernel
from hdgemm.tasks.virtual_time import VirtualRun

if TYPE_CHECKING:
    import threading
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import FactorDevice
    from hdgemm.pipeline.timeline import Observer, Timeline
    from hdgemm.tasks.block_columns import Owner

#: Rows and columns of the matrix on which capabilities are measured, and its panels' width.
_PROBE: Final = 768
_PROBE_WIDTH: Final = 128
#: Seconds that the runtime takes for a task, assumed.
_LATENCY: Final = 50e-6
#: Kinds of tasks that every device runs, and those that the host alone runs.
UPDATES: Final = ("gemm", "trsm", "laswp", "larfb")
KINDS: Final = (*UPDATES, "potrf", "panel trsm", "getrf", "geqrt")


@dataclass(frozen=True, slots=True)
class Factorised:
    """What a factorisation leaves beside the factors in the array.

    Parameters
    ----------
    timeline
        Of all devices.
    widths
        Of the block columns.
    pivots, zeros
        Of LU: 0-based interchanges as LAPACK's, and 1-based indices of zero pivots.
    triangles
        Of QR: T of the compact WY form of each panel.
    """

    timeline: Timeline
    widths: tuple[int, ...]
    pivots: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    zeros: tuple[int, ...] = ()
    triangles: tuple[NDArray[Any], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMachine:
    """The host and the devices that run tasks, with their capabilities.

    Parameters
    ----------
    capabilities
        The host, and each of the `devices` by its name.
    blas_threads
        Threads of each BLAS call on the host.
    dealing
        ``"proportional"`` deals block columns by capability (HGDD), to the host too;
        ``"devices"`` so but not to the host, ``"uniform"`` in turn to the devices; ``"dynamic"``
        leaves each task to the scheduler; ``"host"`` uses no device. ``"model"`` takes the fastest
        of "proportional", "devices" and "host" in virtual time. ``"moving"``, for LU on the host
        and one device, keeps a share of the columns right of each panel on the host
        (Donfack et al.).
    lookahead, priorities
        Whether panels run beside earlier updates, and before later ones.
    """

    capabilities: tuple[Capability, ...]
    devices: Mapping[str, FactorDevice] = field(default_factory=dict)
    blas_threads: int = 1
    dealing: str = "model"
    lookahead: bool = True
    priorities: bool = True

    def weights(self, name: str, shape: tuple[int, int], width: int) -> dict[str, float] | None:
        """Return the weights by which block columns are dealt; None for no dealing."""
        if self.dealing in ("dynamic", "moving") or not self.devices or not width * shape[0]:
            return None
        if self.dealing == "uniform":
            return dict.fromkeys(self.devices, 1.0)
        panel_kind, update_kind = PANELS[name]
        typical = Kernel(update_kind, 2 * shape[0] * width**2, width)
        panel_share = 1.5 * width / max(1, shape[1])
        weights = update_weights(self.capabilities, typical, panel_share, panel_kind)
        if self.dealing == "devices" and len(weights) > 1:
            weights.pop(HOST, None)
        return weights

    def dealt(self, name: str, cut: tuple[tuple[int, int], Sequence[int], Any]) -> TaskMachine:
        """Return this machine with the dealing that is the fastest in virtual time.

        Parameters
        ----------
        cut
            Shape, widths and dtype of the matrix.
        """
        if self.dealing not in ("model", "host"):
            return self
        alone = replace(
            self, dealing="host", devices={},
            capabilities=tuple(each for each in self.capabilities if each.name == HOST),
        )  # fmt: skip
        if self.dealing == "host" or not self.devices:
            return alone
        others = [replace(self, dealing=dealing) for dealing in ("proportional", "devices")]
        return min((*others, alone), key=lambda each: each.expected_seconds(name, *cut))

    def expected_seconds(
        self, name: str, shape: tuple[int, int], widths: Sequence[int], dtype: Any
    ) -> float:
        """Return the time of a factorisation in virtual time; infinite where it does not fit."""
        weights = self.weights(name, shape, max(widths, default=0))
        columns = BlockColumns.cut(
            shape, widths, dtype=dtype, lower=name == "cholesky", weights=weights
        )
        try:
            run = VirtualRun(
                self.without_workspace(shape[0], widths, np.dtype(dtype)),
                priorities=self.priorities,
            )
            ALGORITHMS[name](columns, run.insert, lookahead=self.lookahead)
            return run.finish().seconds
        except DoesNotFitError:
            return float("inf")

    def owner(self, name: str, rows: int, widths: Sequence[int]) -> Owner | None:
        """Return which device updates a column, for the dealing "moving"; otherwise None.

        The host's share is the one with which both take equally long at their measured rates.
        """
        if self.dealing != "moving" or name != "lu" or not self.devices or not rows * len(widths):
            return None
        (device,) = self.devices
        width = max(widths, default=1)
        update = Kernel("gemm", 2 * rows * width**2, width)
        rates = {x.name: x.lanes * update.flops / x.seconds(update) for x in self.capabilities}
        share = host_share(rates[HOST], rates[device])
        return split_columns(round(share * len(widths)), device)

    def factor(
        self,
        name: str,
        array: NDArray[Any],
        *,
        widths: Sequence[int] | None = None,
        observer: Observer | None = None,
        cancel: threading.Event | None = None,
    ) -> Factorised:
        """Overwrite a column-major array by its factors: "cholesky" (lower), "lu" or "qr".

        Parameters
        ----------
        widths
            Of the block columns; None: the model's.
        """
        shape = (array.shape[0], array.shape[1])
        if widths is None:
            widths = panel_widths(name, shape, self.capabilities, array.itemsize)
        dealt = self.dealt(name, (shape, widths, array.dtype))
        cut = BlockColumns.cut(
            shape, widths, array=array, lower=name == "cholesky",
            weights=dealt.weights(name, shape, max(widths, default=0)),
            owner=dealt.owner(name, shape[0], widths),
        )  # fmt: skip
        with Runtime(
            dealt.without_workspace(shape[0], widths, array.dtype), dealt.devices,
            priorities=self.priorities, blas_threads=self.blas_threads, observer=observer,
            cancel=cancel,
        ) as runtime:  # fmt: skip
            found: Any = ALGORITHMS[name](cut, runtime.insert, lookahead=self.lookahead)
            timeline = runtime.finish()
        if name == "lu":
            finish_pivots(cut, found)
            return Factorised(timeline, tuple(widths), found.rows, tuple(sorted(found.zeros)))
        triangles = tuple(tile.data() for tile in found) if name == "qr" else ()
        return Factorised(timeline, tuple(widths), triangles=triangles)

    @classmethod
    def of(
        cls, devices: Mapping[str, FactorDevice], *, lanes: int = 1, blas_threads: int = 1
    ) -> TaskMachine:
        """Return a machine of the host and some devices, with assumed rates."""
        capabilities = [Capability(name=HOST, rates=dict.fromkeys(KINDS, 1e10), lanes=lanes)]
        for name, device in devices.items():
            limit = device.spec.limit()
            capabilities.append(
                Capability(name=name, rates=dict.fromkeys(UPDATES, 1e10), memory_bytes=limit)
            )
        return cls(capabilities=tuple(capabilities), devices=devices, blas_threads=blas_threads)

    def measured(self, name: str, dtype: np.dtype[Any]) -> TaskMachine:
        """Return this machine with the rates that it reaches on a small matrix.

        Each device runs all updates of one factorisation, and another one before it, in which
        its kernels are compiled (Dongarra et al., section 6.2: estimated from the elapsed time).
        """
        found = []
        for each in self.capabilities:
            weights = {each.name: 1.0}
            for _ in range(2):
                rates, copied = self._probe(name, dtype, weights)
            own = rates.get(each.name, {})
            memory = own.get("laswp", each.memory)
            up = copied.get((each.name, "load2"), each.up)
            down = copied.get((each.name, "store1"), each.down)
            found.append(
                replace(each, rates=own, memory=memory, up=up, down=down, latency=_LATENCY)
            )
        return replace(self, capabilities=tuple(found))

    def _probe(
        self, name: str, dtype: np.dtype[Any], weights: dict[str, float]
    ) -> tuple[dict[str, dict[str, float]], dict[tuple[str, str], float]]:
        array = np.zeros((_PROBE, _PROBE), dtype, "F")
        generator = np.random.default_rng(0)
        array[...] = generator.standard_normal(array.shape)
        array.flat[:: _PROBE + 1] += 2 * _PROBE  # positive definite enough: its lower triangle
        cut = BlockColumns.cut(
            array.shape, even_widths(_PROBE, _PROBE_WIDTH), array=array,
            lower=name == "cholesky", weights=weights,
        )  # fmt: skip
        with Runtime(
            self.without_workspace(_PROBE, [_PROBE_WIDTH], array.dtype),
            self.devices,
            blas_threads=self.blas_threads,
        ) as runtime:
            ALGORITHMS[name](cut, runtime.insert)
            runtime.finish()
        return runtime.rates(), runtime.copy_rates()

    def without_workspace(
        self, rows: int, widths: Sequence[int], dtype: np.dtype[Any]
    ) -> list[Capability]:
        """Return the capabilities without the memory that kernels need as workspace."""
        width = max(widths, default=1)
        found = []
        for capability in self.capabilities:
            each = capability
            device = self.devices.get(each.name)
            if device is None:
                found.append(each)
                continue
            workspace = device.slot_bytes("A", width, rows, dtype)
            workspace += device.slot_bytes("B", width, rows, dtype)
            workspace += 4 * max(128, width) ** 2 * dtype.itemsize
            if each.memory_bytes is not None:
                if each.memory_bytes <= workspace:
                    raise DoesNotFitError(
                        f"{each.name}: kernels on panels of {width} columns need {workspace:,} "
                        f"bytes of workspace, and it has {each.memory_bytes:,}; choose narrower "
                        "panels",
                        requested=workspace, available=each.memory_bytes,
                    )  # fmt: skip
                each = replace(each, memory_bytes=each.memory_bytes - workspace)
            found.append(each)
        return found
