"""Energy that a run took, by the counters of processors and GPUs; never an estimate.

RAPL counts the joules of processor packages and of their memory (Linux, powercap), NVML a GPU's
GPU. Both are differences of a counter between the start and the end of a run, so that nothing has
to be sampled but counters that wrap. Haidar et al. ("Analysis and Design Techniques towards
High-Performance and Energy-Efficient Dense Linear Solvers on GPUs", section 7.2) average samples
of power over windows of 100 ms from the same two sources, which are accurate within 5 %.
"""

from __future__ import annotations

import threading
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

#: Root of the counters of Linux's powercap driver.
_POWERCAP: Final = Path("/sys/class/powercap")
_PERMISSION: Final = "sudo chmod o+r /sys/class/powercap/intel-rapl:*/energy_uj"
#: Seconds between two readings: the smallest counters wrap after 65 kJ, minutes at full load.
_INTERVAL: Final = 10.0


@dataclass(frozen=True, slots=True)
class Energy:
    """Joules of a run.

    Parameters
    ----------
    joules
        By source: ``"package-0"``, ``"package-0 dram"``, ``"cuda:0"``. The whole machine's, other
        processes included. Empty where nothing was measured.
    seconds
        Length of the measured window: planning and the run itself.
    missing
        By kind of source, why it was not measured and how to change that.
    """

    joules: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    missing: Mapping[str, str] = field(default_factory=dict)

    @property
    def total(self) -> float | None:
        """Joules of all sources; None where there is none."""
        return sum(self.joules.values()) if self.joules else None

    @property
    def watts(self) -> float | None:
        """Mean power of all sources; None where nothing was measured."""
        return self.total / self.seconds if self.total is not None and self.seconds > 0 else None

    def gflops_per_watt(self, gflops: float) -> float | None:
        """Return 10⁹ flop/s per watt of a run of this speed; None where nothing was measured."""
        return gflops / self.watts if self.watts else None

    @classmethod
    def of_runs(cls, runs: Iterable[Energy]) -> Energy:
        """Add runs that followed one another; a source counts where each run measured it."""
        parts = list(runs)
        missing = {kind: why for part in parts for kind, why in part.missing.items()}
        names = [set(part.joules) for part in parts]
        measured = set.intersection(*names) if names else set()
        for name in sorted(set().union(*names) - measured):
            missing.setdefault(name, "its counter was read in some of the runs only")
        joules = {name: sum(part.joules[name] for part in parts) for name in sorted(measured)}
        return cls(joules, sum(part.seconds for part in parts), missing)

    def to_dict(self, gflops: float) -> dict[str, Any]:
        """Return plain values for JSON; null where nothing was measured."""
        return {
            **asdict(self),
            "total_joules": self.total,
            "watts": self.watts,
            "gflops_per_watt": self.gflops_per_watt(gflops),
        }

    def line(self, gflops: float) -> str:
        """Return one line for people."""
        if self.total is None:
            reasons = "; ".join(f"{kind}: {reason}" for kind, reason in self.missing.items())
            return f"energy: not measured ({reasons})"
        rate = self.gflops_per_watt(gflops)
        per_watt = "" if rate is None else f", {rate:.2f} GFLOP/s per watt"
        sources = ", ".join(f"{name} {joules:.1f} J" for name, joules in self.joules.items())
        left_out = "".join(f"; without {kind}: {why}" for kind, why in self.missing.items())
        return f"energy: {self.total:.1f} J{per_watt} ({sources}{left_out})"


class _Counter:
    """One counter of energy, and the joules that it has counted since the first reading.

    `read` returns the counter, and raises OSError or ValueError where it cannot be read; one count
    is `unit` joules; it begins anew at `wraps`, None for one that does not.
    """

    def __init__(self, read: Callable[[], int], unit: float, wraps: int | None = None) -> None:
        self._read, self._unit, self._wraps = read, unit, wraps
        self._last = read()
        self.joules = 0.0

    def update(self) -> None:
        """Add what was counted since the last reading."""
        now = self._read()
        counted = now - self._last
        if counted < 0:
            if self._wraps is None:
                raise ValueError("the counter was reset")
            counted += self._wraps
        self.joules += counted * self._unit
        self._last = now


class EnergyMeter:
    """Context that measures the energy of what runs in it.

    Parameters
    ----------
    devices
        Names of the devices that take part; GPUs are measured by their own counters.
    powercap
        Root of the tree of RAPL counters; None for ``/sys/class/powercap``.
    nvml
        NVML's module; None imports nvidia-ml-py where a GPU takes part.

    Attributes
    ----------
    result
        The `Energy`, complete when the context is left.

    Examples
    --------
    >>> with EnergyMeter() as meter:
    ...     hdgemm.matmul(a, b)
    >>> print(meter.result.line(gflops=100.0))
    """

    def __init__(
        self, devices: Iterable[str] = (), *, powercap: Path | None = None, nvml: Any = None
    ) -> None:
        self._devices, self._powercap, self._nvml = tuple(devices), powercap or _POWERCAP, nvml
        self._counters: dict[str, _Counter] = {}
        self._missing: dict[str, str] = {}
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.result = Energy()

    def __enter__(self) -> Self:
        self.start()
        return self

    def start(self) -> None:
        """Begin to measure."""
        self._add_packages()
        for device in self._devices:
            if device.startswith("cuda:"):
                self._add_gpu(device)
        self._start = time.perf_counter()
        if self._counters:
            self._thread = threading.Thread(target=self._watch, name="hdgemm-energy", daemon=True)
            try:
                self._thread.start()
            except BaseException:  # Ctrl-C reaches the start when the thread runs already
                self.abandon()
                raise

    def __exit__(self, *_: object) -> None:
        self.finish()

    def abandon(self) -> None:
        """Stop reading the counters, without a result."""
        self._stop.set()

    def finish(self) -> Energy:
        """Return what was measured since the start."""
        self.abandon()
        if self._thread is not None:
            self._thread.join()
        self._update()
        joules = {name: counter.joules for name, counter in self._counters.items()}
        self.result = Energy(joules, time.perf_counter() - self._start, self._missing)
        return self.result

    def _add_packages(self) -> None:
        """Add packages and their memory; cores and graphics are parts of a package."""
        found = False
        for zone in sorted(self._powercap.glob("intel-rapl:*")):
            try:
                name = (zone / "name").read_text(encoding="ascii").strip()
                memory = zone.name.count(":") == 2 and name == "dram"
                if not (memory or name.startswith("package")):
                    continue
                found = True
                if memory:
                    package = zone.with_name(zone.name.rpartition(":")[0])
                    name = f"{(package / 'name').read_text(encoding='ascii').strip()} dram"
                wraps = int((zone / "max_energy_range_uj").read_text(encoding="ascii"))
                self._counters[name] = _Counter(_file_reader(zone / "energy_uj"), 1e-6, wraps)
            except PermissionError:
                self._missing["RAPL"] = f"its counters are readable by root only; {_PERMISSION}"
            except (OSError, ValueError) as error:
                self._missing["RAPL"] = f"{zone.name}: {error}"
        if not found and "RAPL" not in self._missing:
            self._missing["RAPL"] = f"{self._powercap} has no counters of a processor"

    def _add_gpu(self, device: str) -> None:
        try:
            nvml = self._nvml or _nvml()
            nvml.nvmlInit()
            handle = nvml.nvmlDeviceGetHandleByPciBusId(_bus_id(device))

            def read() -> int:
                try:
                    return int(nvml.nvmlDeviceGetTotalEnergyConsumption(handle))
                except nvml.NVMLError as error:
                    raise OSError(str(error)) from error

            self._counters[device] = _Counter(read, 1e-3)
        except ImportError:
            self._missing[device] = "nvidia-ml-py is missing; pip install nvidia-ml-py"
        except Exception as error:  # noqa: BLE001 - NVML's errors are as many as its versions
            self._missing[device] = f"NVML: {error}"

    def _watch(self) -> None:
        while not self._stop.wait(_INTERVAL):
            self._update()

    def _update(self) -> None:
        """Read all counters; one that fails is left out as a whole, since a part would mislead."""
        for name, counter in list(self._counters.items()):
            try:
                counter.update()
            except (OSError, ValueError) as error:
                del self._counters[name]
                self._missing[name] = f"its counter was lost during the run: {error}"


def _file_reader(path: Path) -> Callable[[], int]:
    return lambda: int(path.read_text(encoding="ascii"))


def _nvml() -> Any:
    import pynvml

    return pynvml


def _bus_id(device: str) -> str:
    """Return a GPU's PCI address: CUDA and NVML may number GPUs in different orders."""
    import cupy

    return str(cupy.cuda.runtime.deviceGetPCIBusId(int(device.partition(":")[2])))
