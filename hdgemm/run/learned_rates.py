"""What runs have taught about each device's speed, kept for the next run.

The file maps a machine, a set of devices, a dtype, a class of shapes and the threads of the host
to each device's flop/s. A set of one device is that device alone.
"""

from __future__ import annotations

import math
import platform
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any, Final

from hdgemm.machine.cache import read_entries, write_entry
from hdgemm.run.split_report import LeftOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.pipeline.plan import Problem

#: The file in the cache folder.
_FILE: Final = "rates.json"
#: Seconds below which a run says little about a device by itself.
LEAST_SECONDS: Final = 1.0
#: A set is slower than one device alone if it reaches less than this part of its speed.
_SLOWER: Final = 0.99
#: So often in a row devices are left out before they are tried again.
_RESTS: Final = 8


@dataclass(frozen=True, slots=True)
class Learned:
    """One device's speed within a set.

    Parameters
    ----------
    flop_rate
        Flop/s in the last run in which it computed anything.
    known
        False for a device that was dropped: it is given small pieces to find out again, so that
        a share that fell to zero can recover.
    rests
        Runs since then in which it was left out from the beginning.
    """

    flop_rate: float
    known: bool = True
    rests: int = 0


@dataclass(frozen=True)
class Rates:
    """What is known about a set of devices, for one dtype and shape class.

    Rates are those within the set: a CPU that also feeds the others is slower than alone.

    Parameters
    ----------
    found
        By device, within the set.
    alone
        Flop/s of those of the devices that were run by themselves.
    """

    key: str
    found: Mapping[str, Learned] = field(default_factory=dict)
    alone: Mapping[str, float] = field(default_factory=dict)

    def learned(self, device: str) -> Learned | None:
        """Return what earlier runs of this set taught about a device, None if nothing."""
        return self.found.get(device)

    def left_out(self, devices: Sequence[str]) -> dict[str, LeftOut]:
        """Return the devices with which the set is slower than its best member alone.

        Empty unless all speeds are known, and now and then, so that they can show that they
        have become useful.
        """
        known = [self.found[name] for name in devices if name in self.found]
        if len(known) < len(devices) or not all(each.known for each in known) or not self.alone:
            return {}
        best = max(self.alone, key=lambda name: self.alone[name])
        together = sum(each.flop_rate for each in known)
        if together >= _SLOWER * self.alone[best] or max(e.rests for e in known) >= _RESTS:
            return {}
        return {name: LeftOut(together, best, self.alone[best]) for name in devices if name != best}

    def rested(self, devices: Sequence[str]) -> dict[str, Learned]:
        """Return what is known about devices that were left out once more."""
        return {
            name: Learned(old.flop_rate, old.known, old.rests + 1)
            for name in devices
            if (old := self.found.get(name)) is not None
        }

    def learn(self, measured: Mapping[str, Learned]) -> None:
        """Keep what a run measured; a folder that cannot be written to is no error."""
        kept = {**_entry(read_entries(_FILE), self.key), **measured}
        write_entry(_FILE, self.key, {name: asdict(one) for name, one in kept.items()})


def load_rates(devices: Sequence[str], problem: Problem, threads: int | None = None) -> Rates:
    """Return what is known for a set of devices on this machine.

    Parameters
    ----------
    threads
        As in `Options`: the host's speed depends on it.
    """
    entries = read_entries(_FILE)
    lone = {name: _entry(entries, _key([name], problem, threads)).get(name) for name in devices}
    alone = {name: one.flop_rate for name, one in lone.items() if one is not None}
    key = _key(devices, problem, threads)
    return Rates(key, _entry(entries, key), alone)


def learn_alone(device: str, problem: Problem, seconds: float, threads: int | None) -> None:
    """Keep how fast a device is by itself, from a run that was long enough to tell."""
    if seconds >= LEAST_SECONDS:
        rates = load_rates([device], problem, threads)
        rates.learn({device: Learned(problem.flops / seconds)})


def _key(devices: Sequence[str], problem: Problem, threads: int | None) -> str:
    places = "".join(problem.spec(operand).place[0] for operand in ("A", "B", "C"))
    parts = [*sorted(devices), problem.dtype, _shape_class(problem), places, str(threads or "all")]
    return " ".join([platform.node(), *parts])


def _shape_class(problem: Problem) -> str:
    """Name shapes that run alike: by the powers of two of C's side and of k."""
    side = int((problem.m * problem.n) ** 0.5)
    return f"{side.bit_length()}x{problem.k.bit_length()}"


def _entry(entries: Mapping[str, Any], key: str) -> dict[str, Learned]:
    value = entries.get(key)
    if not isinstance(value, dict):
        return {}
    return {name: one for name, each in value.items() if (one := _learned(each)) is not None}


def _learned(value: Any) -> Learned | None:
    """Return an entry, None for one that somebody damaged."""
    try:
        found = Learned(float(value["flop_rate"]), bool(value["known"]), int(value["rests"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found.flop_rate) and found.flop_rate > 0 else None
