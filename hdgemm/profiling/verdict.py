"""The verdict in words: what limits, who interferes, what helps, what the paper observed."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Final

from hdgemm.profiling.conclusions import Observation, Verdict
from hdgemm.profiling.sample import Change

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from hdgemm.profiling.conclusions import Advice, Interference
    from hdgemm.profiling.results import Bandwidth, Prediction, Rung

NAMES: Final[Mapping[str, str]] = {
    "device": "the device's kernel",
    "pcie_up": "the link to the device (PCIe up)",
    "pcie_down": "the link from the device (PCIe down)",
    "host_memory": "host memory bandwidth",
    "disk": "the disk",
    "cores": "the cores",
}
#: Below this gain from twice of any resource, the run waits for nothing but its kernel.
_LITTLE: Final = 0.03
#: A stage that keeps less than this of its own rate suffers from the others.
_SUFFERS: Final = 0.90


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What a verdict is made of.

    Parameters
    ----------
    doubled
        By resource, how much faster the run would be with twice of it.
    noise
        What cannot be told since others' load is too much or varies, in sentences.
    cpu_kept
        The part of its own rate that the CPU keeps beside the devices; None where not measured.
    contenders
        How many devices shared the link when `bandwidth` was measured.
    on_host_cores
        The device is the host's own processor under another driver.
    """

    ladder: Mapping[str, Rung] = field(default_factory=dict)
    bandwidth: Mapping[str, Bandwidth] = field(default_factory=dict)
    doubled: Mapping[str, float] = field(default_factory=dict)
    advice: Sequence[Advice] = ()
    interference: Sequence[Interference] = ()
    noise: Sequence[str] = ()
    predictions: Sequence[Prediction] = ()
    cpu_kept: float | None = None
    contenders: int = 1
    unified: bool = False
    on_host_cores: bool = False


def judge(findings: Findings) -> Verdict:
    """Put the findings into words."""
    limit = max(findings.doubled, key=lambda name: findings.doubled[name], default="device")
    gain = findings.doubled.get(limit, 0.0)
    if gain < _LITTLE:
        limit = "device"
    text = [*map(_interference, findings.interference), *findings.noise]
    if findings.doubled:
        text.append(_limit(limit, findings.doubled))
    text += _steps(findings.ladder)
    text += [f"{each.what}: {_percent(each.gain)} ({each.source})" for each in findings.advice]
    text += _far_off(findings.predictions)
    return Verdict(limit, gain, tuple(text), tuple(findings.advice), observations(findings))


def _interference(found: Interference) -> str:
    gone = "part of it" if found.taken is None else f"about {found.taken:.0%} of it"
    return (
        f"Something else on this machine takes {NAMES[found.resource]}: {gone} is gone "
        f"({found.evidence})."
    )


def _limit(limit: str, doubled: Mapping[str, float]) -> str:
    if limit != "device":
        return (
            f"What limits this run is {NAMES[limit]}: with twice of it the run would be "
            f"{_percent(doubled[limit])} faster (model)."
        )
    rest = {name: gain for name, gain in doubled.items() if name != "device"}
    following = max(rest, key=lambda name: rest[name], default=None)
    text = "What limits this run is the device's kernel, as it should be."
    if following is not None and rest[following] >= _LITTLE:
        gain = _percent(rest[following])
        return f"{text} Next comes {NAMES[following]}: twice of it would gain {gain} (model)."
    return f"{text} Twice of any other resource would gain less than {_LITTLE:.0%} (model)."


def _steps(ladder: Mapping[str, Rung]) -> list[str]:
    """Say what each strategy brought over the one before."""
    names = list(ladder)
    return [
        f"{new} over {old}: "
        f"{Change.between(ladder[old].rate.gflops, ladder[new].rate.gflops).words()}"
        for old, new in pairwise(names)
    ]


def _far_off(predictions: Sequence[Prediction]) -> list[str]:
    far = [row for row in predictions if row.far_off]
    if not far:
        return []
    worst = max(far, key=lambda row: abs(row.off))
    sentence = (
        f"The model is off by more than 10 % in {len(far)} of {len(predictions)} predictions; "
        f"most in {worst.run}, {worst.what}: {worst.predicted:.3g} s predicted, "
        f"{worst.measured:.3g} s measured."
    )
    return [sentence]


def observations(findings: Findings) -> tuple[Observation, ...]:
    """Hold the paper's three observations (HDGEMM, section 4.3) against this machine."""
    return (_first(findings), _second(findings), _third(findings))


def _first(findings: Findings) -> Observation:
    claim = "contention on the link limits several devices"
    links = {s: findings.bandwidth[s] for s in ("load2", "store1") if s in findings.bandwidth}
    if findings.unified or not links:
        return Observation(1, claim, None, "this device has no link: staging is its memory")
    if findings.on_host_cores:
        return Observation(1, claim, None, "this device's link is a copy by the host's own cores")
    kept = ", ".join(f"{stage} keeps {each.kept:.0%}" for stage, each in links.items())
    worst = min(links.values(), key=lambda each: each.kept)
    if not Change.between(worst.alone, worst.contended).clear and worst.kept < _SUFFERS:
        return Observation(1, claim, None, f"too noisy to tell: {kept}")
    who = (
        f"{findings.contenders} devices" if findings.contenders > 1 else "all stages of one device"
    )
    return Observation(1, claim, worst.kept < _SUFFERS, f"with {who} at work {kept}")


def _second(findings: Findings) -> Observation:
    claim = "the device's part gains little from more host memory bandwidth"
    gain = findings.doubled.get("host_memory")
    if gain is None:
        return Observation(2, claim, None, "the run was not simulated")
    why = f"twice the memory bandwidth and copy rate would gain {_percent(gain)} (model)"
    return Observation(2, claim, gain < _LITTLE, why)


def _third(findings: Findings) -> Observation:
    claim = "the CPU's part gains from more host memory bandwidth"
    if findings.cpu_kept is None:
        return Observation(3, claim, None, "the CPU took no share in a run")
    if findings.on_host_cores:
        return Observation(3, claim, None, "the device and the CPU are the same cores")
    why = f"beside the devices the CPU keeps {findings.cpu_kept:.0%} of its own rate"
    return Observation(3, claim, findings.cpu_kept < _SUFFERS, why)


def _percent(part: float) -> str:
    return f"{part:+.0%}".replace("%", " %")
