"""Verdict of a profile: what to do, which resource limits, and the paper's observations."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from hdgemm.planning.expectation import simulate
from hdgemm.profiling._samples import FAR_OFF, Change, Sample, percent
from hdgemm.profiling.results import Observation, Verdict

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.machine.rates import Machine
    from hdgemm.pipeline.plan import Plan
    from hdgemm.profiling.results import Profile

RESOURCE_NAMES: Final[Mapping[str, str]] = {
    "device": "the device's kernel",
    "pcie_up": "the link to the device (PCIe up)",
    "pcie_down": "the link from the device (PCIe down)",
    "host_memory": "host memory bandwidth",
    "disk": "the disk",
    "cores": "the cores",
    "interpreter": "the executor's time for an operation",
}
#: The rates that describe each resource.
_RATES: Final[Mapping[str, tuple[str, ...]]] = {
    "device": ("gemm",),
    "pcie_up": ("pcie_up",),
    "pcie_down": ("pcie_down",),
    "host_memory": ("memory", "copy"),
    "disk": ("disk_read", "disk_write"),
    "cores": ("cores",),
    "interpreter": ("operation_seconds",),
}
#: Names of the configurations that a user chooses from.
_CONFIGURATIONS: Final[Mapping[str, str]] = {
    "one device": "data-placement without the CPU",
    "all devices": "data-placement on all devices without the CPU",
    "devices + CPU": "hybrid (devices and CPU)",
    "CPU alone": "the CPU alone",
}
#: With less gain than this from twice the rate of any resource, the run waits for its kernel only.
_LITTLE: Final = 0.03
#: A stage that keeps less than this of its own rate suffers from the others.
_SUFFERS: Final = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a verdict depends on in addition to the measurements.

    `gains` are the relative gains in speed from twice the rate of each resource, by the model;
    `unsteady` are sentences on loads of others that varied too much. So many `contenders`, devices,
    shared the link when bandwidths were measured. A `unified` device works on the matrices in
    place; one `on_host_cores` is the host's own processor under another driver.
    """

    gains: Mapping[str, float] = field(default_factory=dict)
    unsteady: Sequence[str] = ()
    contenders: int = 1
    unified: bool = False
    on_host_cores: bool = False


def gains_from_twice(plan: Plan, machine: Machine) -> dict[str, float]:
    """Return for each resource the relative gain in a plan's speed from twice its rate."""
    now = simulate(plan, machine).seconds
    return {
        resource: now / simulate(plan, _doubled(machine, resource)).seconds - 1
        for resource in _RATES
    }


def _doubled(machine: Machine, resource: str) -> Machine:
    changed: dict[str, Any] = {}
    for name in _RATES[resource]:
        rate = getattr(machine, name)
        if name == "gemm":
            changed[name] = {dtype: 2 * each for dtype, each in rate.items()}
        elif name == "operation_seconds":
            changed[name] = rate / 2
        elif rate is not None:
            changed[name] = 2 * rate
    return replace(machine, **changed)


def judge(profile: Profile, findings: Findings) -> Verdict:
    """Draw the conclusions."""
    gains = findings.gains
    limit = max(gains, key=lambda name: gains[name], default="device")
    gain = gains.get(limit, 0.0)
    if gain < _LITTLE:
        limit = "device"
    text = _other_load(profile, findings.unsteady) or (
        *_action(profile, unified=findings.unified),
        *_limit(profile, limit, gains),
    )
    observed = (
        _link_contention(profile, findings),
        _memory_and_device(gains),
        _memory_and_cpu(profile, findings),
    )
    return Verdict(limit, gain, text, observed)


def _other_load(profile: Profile, unsteady: Sequence[str]) -> tuple[str, ...]:
    """Say what others take, and ask to repeat; nothing on a quiet machine."""
    text = []
    for each in profile.interference:
        part = "a part" if each.taken is None else f"about {each.taken:.0%}"
        name = RESOURCE_NAMES[each.resource]
        text.append(f"Other processes take {part} of {name} ({each.evidence}).")
    text = text or [*unsteady]
    if not text:
        return ()
    return (*text, "Repeat the profile on a quiet machine: this load changes every figure.")


def _action(profile: Profile, *, unified: bool) -> tuple[str, ...]:
    """Name the fastest configuration, and its gain over the next one."""
    rates: dict[str, Sample] = {
        name: profile.scaling[label].gflops
        for label, name in _CONFIGURATIONS.items()
        if label in profile.scaling
    }
    if unified:
        # The CPU's own product lies in RAM, the strategies' in files: not to be compared.
        rates = {name: rung.rate.gflops for name, rung in profile.ladder.items()}
    best, *others = sorted(rates, key=lambda name: -rates[name].median) or [""]
    if not others:
        return ()
    change = Change.between(rates[others[0]], rates[best])
    if change.clear:
        return (f"Use {best}: {percent(change.effect)} over {others[0]}.",)
    noise = f"their speeds differ by less than the noise ({change.noise:.0%})"
    return (f"Use {best} or {others[0]}: {noise}.",)


def _limit(profile: Profile, limit: str, gains: Mapping[str, float]) -> tuple[str, ...]:
    """Name the limiting resource, and the gain from twice its rate, or twice the next one's."""
    if not gains:
        return ()
    name = RESOURCE_NAMES[limit]
    text, doubled = f"{name[0].upper()}{name[1:]} limits the run", limit
    if limit == "device":
        text += ", as it should"
        others = [each for each in gains if each != "device"]
        doubled = max(others, key=lambda each: gains[each], default=limit)
    other = None if doubled == limit else RESOURCE_NAMES[doubled]
    if doubled == "interpreter":
        change = f"halving {other or 'it'}"
    else:
        change = "doubling its rate" if other is None else f"doubling the rate of {other}"
    gain = f"{change} would gain {percent(gains.get(doubled, 0.0))}"
    return (f"{text}; {gain} ({_certainty(profile)}).",)


def _certainty(profile: Profile) -> str:
    """Say how far the model is from the measured runs."""
    runs = [row for row in profile.predictions if row.what == "whole run"]
    if not runs:
        return "model, compared with no run"
    error = Sample.of(abs(row.off) for row in runs).median
    word = "sure" if error <= FAR_OFF else "not sure"
    return f"{word}: the model is {error:.0%} off the measured time, median of {len(runs)} runs"


def _link_contention(profile: Profile, findings: Findings) -> Observation:
    claim = "contention on the link limits several devices"
    bandwidth = profile.bandwidth
    links = {stage: bandwidth[stage] for stage in ("load2", "store1") if stage in bandwidth}
    if findings.unified or not links:
        return Observation(1, claim, None, "this device has no link: staging is its memory")
    if findings.on_host_cores:
        return Observation(1, claim, None, "this device's link is a copy by the host's own cores")
    kept = ", ".join(f"{stage} keeps {each.kept:.0%}" for stage, each in links.items())
    worst = min(links.values(), key=lambda each: each.kept)
    if not Change.between(worst.alone, worst.contended).clear and worst.kept < _SUFFERS:
        return Observation(1, claim, None, f"too noisy to tell: {kept}")
    several = findings.contenders > 1
    load = f"{findings.contenders} devices" if several else "all stages of one device"
    return Observation(1, claim, worst.kept < _SUFFERS, f"with {load} at work {kept}")


def _memory_and_device(gains: Mapping[str, float]) -> Observation:
    claim = "the device's part gains little from more host memory bandwidth"
    gain = gains.get("host_memory")
    if gain is None:
        return Observation(2, claim, None, "the model has no plan of the run")
    why = f"twice the memory bandwidth and copy rate would gain {percent(gain)} (model)"
    return Observation(2, claim, gain < _LITTLE, why)


def _memory_and_cpu(profile: Profile, findings: Findings) -> Observation:
    claim = "the CPU's part gains from more host memory bandwidth"
    if len(profile.cpu) < 2:
        return Observation(3, claim, None, "the CPU took no share in a run")
    if findings.on_host_cores:
        return Observation(3, claim, None, "the device and the CPU are the same cores")
    kept = profile.cpu["within"] / profile.cpu["alone"]
    why = f"beside the devices the CPU keeps {kept:.0%} of its own rate"
    return Observation(3, claim, kept < _SUFFERS, why)
