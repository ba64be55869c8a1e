"""The host and the devices of a factorisation; a model decides which of them take part."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from hdgemm.errors import DoesNotFitError
from hdgemm.fortran import cholesky_pairs, elimination_pairs
from hdgemm.tasks._panel_widths import PANELS, panel_widths
from hdgemm.tasks.algorithms import ALGORITHMS
from hdgemm.tasks.block_columns import BlockColumns, deal, split_columns, update_weights
from hdgemm.tasks.capability import HOST, KINDS, UPDATES, Capability, coarse
from hdgemm.tasks.task import Kernel
from hdgemm.tasks.tournament import LEAF
from hdgemm.tasks.virtual_time import VirtualRun
from hdgemm.units import format_size

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from hdgemm.pipeline.devices.protocol import FactorDevice
    from hdgemm.tasks.block_columns import Owner

#: Algorithms that LAPACK runs on the host where no device helps.
LAPACK: Final = ("cholesky", "lu")
#: Most block columns of a run in virtual time: more are joined, so that it takes about 10 ms.
_MOST_COLUMNS: Final = 12
#: Seconds below which LAPACK factors a matrix sooner than a choice is made.
_WORTH_A_CHOICE: Final = 0.1
#: LAPACK's rate on large matrices, in units of that on the small one on which it is measured: 1.23
#: for n = 4096.
_LAPACK_GAIN: Final = 1.25
#: Choices that are remembered.
_MOST_CHOICES: Final = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskMachine:
    """The host and the devices that run tasks, with their capabilities.

    Parameters
    ----------
    capabilities
        The host, and each of the `devices` by its name.
    blas_threads
        Threads of each BLAS call on the host.
    threads
        Threads of LAPACK on the host alone.
    dealing
        ``"proportional"`` deals block columns by capability (HGDD), to the host too;
        ``"devices"`` so but not to the host, ``"uniform"`` in turn to the devices; ``"moving"``,
        for LU, keeps a share of the columns right of each panel on the host (Donfack et al.);
        ``"dynamic"`` leaves each task to the scheduler; ``"host"`` uses no device. ``"model"``
        takes the fastest in virtual time: with all devices, with each one, or on the host alone.
    lapack
        Flop/s of LAPACK on the host alone; 0 where that is not measured.
    leaf
        Rows of a block of tournament pivoting.
    lookahead, priorities
        Whether panels run beside earlier updates, and before later ones.
    """

    capabilities: tuple[Capability, ...]
    devices: Mapping[str, FactorDevice] = field(default_factory=dict)
    blas_threads: int = 1
    threads: int = 1
    dealing: str = "model"
    lapack: float = 0.0
    leaf: int = LEAF
    lookahead: bool = True
    priorities: bool = True
    _choices: dict[tuple[Any, ...], tuple[tuple[int, ...], TaskMachine]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )

    @classmethod
    def of(
        cls, devices: Mapping[str, FactorDevice], *, threads: int = 1, lanes: bool = False
    ) -> TaskMachine:
        """Return a machine of the host and some devices, with assumed rates.

        The host has `threads`; with `lanes` it runs one task on each, rather than one on all of
        them. Beside devices that compute on its cores, panels take the others: the threads of a
        BLAS call wait for each other, and one without a core delays all.
        """
        left = max(1, threads - sum(device.host_cores for device in devices.values()))
        count = left if lanes else 1
        capabilities = [Capability(name=HOST, rates=dict.fromkeys(KINDS, 1e10), lanes=count)]
        for name, device in devices.items():
            limit = device.spec.limit()
            capabilities.append(
                Capability(name=name, rates=dict.fromkeys(UPDATES, 1e10), memory_bytes=limit)
            )
        return cls(
            capabilities=tuple(capabilities),
            devices=devices,
            blas_threads=left // count,
            threads=threads,
        )

    def insert_all(self, name: str, a: BlockColumns, run: Any) -> Any:
        """Insert all tasks of a factorisation into a run; return what the algorithm returns."""
        more = {"leaf": self.leaf} if name == "calu" else {}
        return ALGORITHMS[name](a, run.insert, lookahead=self.lookahead, **more)

    def cut(
        self,
        name: str,
        shape: tuple[int, int],
        widths: Sequence[int],
        *,
        array: NDArray[Any] | None = None,
        dtype: Any = np.float64,
    ) -> BlockColumns:
        """Cut a matrix into block columns that belong to devices."""
        width = max(widths, default=0)
        return BlockColumns.cut(
            shape,
            widths,
            array=array,
            dtype=dtype,
            lower=name == "cholesky",
            weights=self.weights(name, shape, width),
            owner=self.owner(shape[0], widths),
        )

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

    def owner(self, rows: int, widths: Sequence[int]) -> Owner | None:
        """Return which device updates a column, for the dealing "moving"; otherwise None.

        The host's share is the one with which host and devices take equally long at their measured
        rates.
        """
        if self.dealing != "moving" or not self.devices or not rows * len(widths):
            return None
        width = max(widths)
        update = Kernel("gemm", 2 * rows * width**2, width)
        rates = {x.name: x.lanes * update.flops / x.seconds(update) for x in self.capabilities}
        total = sum(rates.values())
        share = rates.pop(HOST) / total  # d/N of the host
        return split_columns(round(share * len(widths)), deal(len(widths), rates))

    def choose(
        self, name: str, shape: tuple[int, int], widths: Sequence[int] | None, dtype: Any
    ) -> tuple[tuple[int, ...], TaskMachine]:
        """Return the widths (None: the model's) of the panels and `dealt`, both remembered."""
        key = _key(name, shape, widths, dtype)
        found = self._choices.get(key)
        if found is None:
            if widths is None:
                itemsize = np.dtype(dtype).itemsize
                widths = panel_widths(name, shape, self.capabilities, itemsize)
            if len(self._choices) >= _MOST_CHOICES:
                self._choices.clear()
            found = tuple(widths), self.dealt(name, shape, widths, dtype)
            self._choices[key] = found
        return found

    def correct(
        self,
        name: str,
        shape: tuple[int, int],
        widths: Sequence[int] | None,
        dtype: Any,
        seconds: float,
    ) -> None:
        """Leave later matrices of a shape to LAPACK, when a run on devices took longer than that.

        Takes the arguments of `choose`, and the measured time of the run.
        """
        key = _key(name, shape, widths, dtype)
        if self.dealing != "model" or not self.lapack or name not in LAPACK:
            return
        if key in self._choices and seconds > self._lapack_seconds(name, shape):
            self._choices[key] = self._choices[key][0], self.restricted((), "host")

    def dealt(
        self, name: str, shape: tuple[int, int], widths: Sequence[int], dtype: Any
    ) -> TaskMachine:
        """Return this machine with the devices and the dealing that are the fastest by a model.

        Of equally fast ones, the one with the fewest devices.
        """
        if self.dealing not in ("model", "host"):
            return self
        alone = self.restricted((), "host")
        if self.dealing == "host" or not self.devices:
            return alone
        if self.lapack and name in LAPACK:
            seconds = alone.expected_seconds(name, shape, widths, dtype)
            if seconds < _WORTH_A_CHOICE:
                return alone
        sets = dict.fromkeys([*((each,) for each in self.devices), tuple(self.devices)])
        ways = ("proportional", "devices", *(["moving"] if name in ("lu", "calu") else []))
        candidates = [
            alone,
            *(self.restricted(names, way) for names in sets for way in ways),
        ]
        return min(candidates, key=lambda each: each.expected_seconds(name, shape, widths, dtype))

    def restricted(self, names: Sequence[str], dealing: str) -> TaskMachine:
        """Return the host with some of the devices."""
        return replace(
            self,
            dealing=dealing,
            devices={name: self.devices[name] for name in names},
            capabilities=tuple(x for x in self.capabilities if x.name in (HOST, *names)),
        )

    def expected_seconds(
        self, name: str, shape: tuple[int, int], widths: Sequence[int], dtype: Any
    ) -> float:
        """Return the time of a factorisation in virtual time; infinite where it does not fit."""
        if self.dealing == "host" and self.lapack and name in LAPACK:
            return self._lapack_seconds(name, shape)
        group = -(-len(widths) // _MOST_COLUMNS)
        joined = [sum(widths[at : at + group]) for at in range(0, len(widths), group or 1)]
        # Wide columns may not fit a small device where narrow ones do.
        seconds = self._virtual_seconds(name, shape, joined, dtype, group)
        if seconds == float("inf") and group > 1:
            seconds = self._virtual_seconds(name, shape, widths, dtype, 1)
        return seconds

    def _lapack_seconds(self, name: str, shape: tuple[int, int]) -> float:
        """Return the time of LAPACK on the host alone, as if every matrix were large."""
        return lapack_flops(name, shape) / (_LAPACK_GAIN * self.lapack)

    def _virtual_seconds(
        self, name: str, shape: tuple[int, int], widths: Sequence[int], dtype: Any, group: int
    ) -> float:
        """Return the time with block columns of which each joins `group` ones."""
        try:
            capabilities = self.without_workspace(shape[0], widths, dtype)
            run = VirtualRun(
                [coarse(each, group) for each in capabilities], priorities=self.priorities
            )
            self.insert_all(name, self.cut(name, shape, widths, dtype=dtype), run)
            return run.finish().seconds
        except DoesNotFitError:
            return float("inf")

    def without_workspace(self, rows: int, widths: Sequence[int], dtype: Any) -> list[Capability]:
        """Return the capabilities without the memory that kernels need as workspace."""
        width, dtype = max(widths, default=1), np.dtype(dtype)
        found = []
        for capability in self.capabilities:
            each = capability
            device = self.devices.get(each.name)
            if device is None:
                found.append(each)
                continue
            workspace = device.slot_bytes("A", width, rows, dtype)
            workspace += device.slot_bytes("B", width, rows, dtype)
            if dtype.kind == "c":
                workspace += device.slot_bytes("C", width, rows, dtype)  # conjugates
            workspace += 4 * max(128, width) ** 2 * dtype.itemsize
            if each.memory_bytes is not None:
                if each.memory_bytes <= workspace:
                    raise DoesNotFitError(
                        f"{each.name}: kernels on panels of {width} columns need "
                        f"{format_size(workspace)} of workspace, and it has "
                        f"{format_size(each.memory_bytes)}; choose narrower panels",
                        requested=workspace,
                        available=each.memory_bytes,
                    )
                each = replace(each, memory_bytes=each.memory_bytes - workspace)
            found.append(each)
        return found


def _key(
    name: str, shape: tuple[int, int], widths: Sequence[int] | None, dtype: Any
) -> tuple[Any, ...]:
    """Return what a remembered choice depends on."""
    return name, shape, None if widths is None else tuple(widths), np.dtype(dtype).str


def lapack_flops(name: str, shape: tuple[int, int]) -> int:
    """Return LAPACK's operation count of a factorisation of reals."""
    pairs = cholesky_pairs(*shape) if name == "cholesky" else elimination_pairs(*shape)
    return int(2 * pairs)
