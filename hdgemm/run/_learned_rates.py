"""Cache of the speeds that devices reached in earlier runs.

Key: machine, set of devices, dtype, class of shapes and threads of the host. Value: flop/s of each
device within that set. A set of one device gives that device's speed alone.
"""

from __future__ import annotations

import math
import platform
from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from hdgemm.machine.cache import read_entries, write_entry
from hdgemm.run.split_report import LeftOut

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.pipeline.plan import Problem

#: The file in the cache folder.
_FILE: Final = "rates.json"
#: Shorter runs do not update the speed of a device alone.
LEAST_SECONDS: Final = 1.0
#: A set of devices is slower than its best member below this part of that member's speed.
_SLOWER: Final = 0.99
#: Number of runs for which devices are left out before they are tried again.
_RESTS: Final = 8


@dataclass(frozen=True, slots=True)
class Learned:
    """One device's flop/s within a set, in the last run in which it computed anything.

    `known` is False for a device that was dropped: it gets small trial tiles, so that a share that
    fell to zero can recover. `rests` counts the runs since then in which it took no part.
    """

    flop_rate: float
    known: bool = True
    rests: int = 0


@dataclass(frozen=True)
class Rates:
    """Speeds of a set of devices, for one dtype and shape class: of those `found` within the set,
    and flop/s of those that were run `alone`.

    A CPU that also feeds the others is slower than alone.
    """

    key: str
    found: Mapping[str, Learned] = field(default_factory=dict)
    alone: Mapping[str, float] = field(default_factory=dict)

    def left_out(self, devices: Sequence[str]) -> dict[str, LeftOut]:
        """Return the devices with which the set is slower than its best member alone.

        Empty unless all speeds are known, and after every `_RESTS` runs, so that their speeds are
        measured again.
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
        """Return the speeds of devices that were left out, with one more rest each."""
        found = {name: self.found[name] for name in devices if name in self.found}
        return {name: replace(old, rests=old.rests + 1) for name, old in found.items()}

    def learn(self, measured: Mapping[str, Learned]) -> None:
        """Store measured speeds; a cache folder that cannot be written is ignored."""
        kept = {**_entry(read_entries(_FILE), self.key), **measured}
        write_entry(_FILE, self.key, {name: asdict(one) for name, one in kept.items()})


def load_rates(devices: Sequence[str], problem: Problem, threads: int | None = None) -> Rates:
    """Return the measured speeds of a set of devices on this machine, with so many host threads."""
    entries = read_entries(_FILE)
    lone = {name: _entry(entries, _key([name], problem, threads)).get(name) for name in devices}
    alone = {name: one.flop_rate for name, one in lone.items() if one is not None}
    key = _key(devices, problem, threads)
    return Rates(key, _entry(entries, key), alone)


def learn_alone(device: str, problem: Problem, seconds: float, threads: int | None) -> None:
    """Store the speed of a device alone, from a run of at least `LEAST_SECONDS`."""
    if seconds >= LEAST_SECONDS:
        rates = load_rates([device], problem, threads)
        rates.learn({device: Learned(problem.flops / seconds)})


def _key(devices: Sequence[str], problem: Problem, threads: int | None) -> str:
    places = "".join(problem.spec(operand).place[0] for operand in ("A", "B", "C"))
    dtype = f"{problem.factor_dtype}-" * bool(problem.exact_terms) + problem.dtype
    parts = [*sorted(devices), dtype, _shape_class(problem), places, str(threads or "all")]
    return " ".join([platform.node(), *parts])


def _shape_class(problem: Problem) -> str:
    """Return the class of a shape: the powers of two of C's side and of k."""
    side = int((problem.m * problem.n) ** 0.5)
    return f"{side.bit_length()}x{problem.k.bit_length()}"


def _entry(entries: Mapping[str, Any], key: str) -> dict[str, Learned]:
    value = entries.get(key)
    if not isinstance(value, dict):
        return {}
    return {name: one for name, each in value.items() if (one := _learned(each)) is not None}


def _learned(value: Any) -> Learned | None:
    """Return an entry of the cache, None for a damaged one."""
    try:
        found = Learned(float(value["flop_rate"]), bool(value["known"]), int(value["rests"]))
    except (KeyError, TypeError, ValueError, OverflowError):
        return None
    return found if math.isfinite(found.flop_rate) and found.flop_rate > 0 else None
