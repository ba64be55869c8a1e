"""What makes a command the same command: factors, operands, C, and a plan that still fits."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from hdgemm.durable.fingerprint import Fingerprint, changed_fields, differences, fingerprint

if TYPE_CHECKING:
    from collections.abc import Mapping

    from hdgemm.matrices.base import Operand
    from hdgemm.options import Options
    from hdgemm.pipeline.plan import DeviceSpec, Plan, Problem


@dataclass(frozen=True)
class Identity:
    """C := alpha·A·B + beta·C, told from every other command.

    `inputs` are fingerprints of A, B and, where C is read from elsewhere, of the old C, by letter;
    `target` is what of C's place must not change, see `Destination.target`.
    """

    alpha: complex
    beta: complex
    dtype: str
    inputs: Mapping[str, Fingerprint]
    target: Mapping[str, Any]

    @classmethod
    def of(
        cls,
        alpha: complex,
        beta: complex,
        dtype: str,
        inputs: Mapping[str, Operand],
        target: Mapping[str, Any],
    ) -> Identity:
        """Take fingerprints of the operands."""
        prints = {letter: fingerprint(operand) for letter, operand in inputs.items()}
        return cls(complex(alpha), complex(beta), dtype, prints, target)

    def to_record(self) -> dict[str, Any]:
        """Return plain values, exact to the bit."""
        return {
            "alpha": _exact(self.alpha),
            "beta": _exact(self.beta),
            "dtype": self.dtype,
            "inputs": dict(self.inputs),
            "target": dict(self.target),
        }

    def differences(self, record: Mapping[str, Any], besides: str = "") -> list[str]:
        """Say in words how the command recorded differs from this one; empty when it does not.

        The operand named `besides` may be another.
        """
        now = self.to_record()
        found = [
            f"{name} was {_number(record[name])}, is {_number(now[name])}"
            for name in ("alpha", "beta")
            if record[name] != now[name]
        ]
        found += changed_fields({"dtype": record["dtype"]}, {"dtype": self.dtype})
        found += changed_fields(record["target"], self.target, "C's ")
        before = record["inputs"]
        for letter in sorted({*before, *self.inputs} - {besides}):
            found += differences(letter, before.get(letter, {}), self.inputs.get(letter, {}))
        return found


def plan_differences(
    plan: Plan, problem: Problem, options: Options, device: DeviceSpec
) -> list[str]:
    """Say why a plan made earlier cannot go on with this problem, these options, this device."""
    found = []
    if _stored(plan.problem) != _stored(problem):
        found.append(f"the problem was {_stored(plan.problem)}, is {_stored(problem)}")
    for name in ("name", "unified", "granularity"):
        before, now = getattr(plan.device, name), getattr(device, name)
        if before != now:
            found.append(f"the device's {name} was {before}, is {now}")
    if plan.strategy != options.strategy:
        found.append(f"the strategy was {plan.strategy}, is {options.strategy}")
    if options.tile is not None:
        asked = tuple(map(min, options.tile, (problem.m, problem.n, problem.k)))
        if asked != plan.tile:
            found.append(f"the tile was {plan.tile}, is {asked}")
    if options.host_bytes is not None and plan.host_bytes > options.host_bytes:
        found.append(
            f"the plan holds {plan.host_bytes} bytes of host memory, allowed are now "
            f"{options.host_bytes}"
        )
    allowed = device.limit(options.device_bytes)
    if allowed is not None and plan.device_bytes > allowed:
        found.append(
            f"the plan holds {plan.device_bytes} bytes on {device.name}, allowed are now {allowed}"
        )
    return found


def _stored(problem: Problem) -> Problem:
    """Leave out how the operands meet the device: that is the plan's choice, not the command's."""
    a, b, c = (replace(spec, path="staged") for spec in (problem.a, problem.b, problem.c))
    return replace(problem, a=a, b=b, c=c)


def _exact(value: complex) -> list[str]:
    return [value.real.hex(), value.imag.hex()]


def _number(parts: list[str]) -> complex:
    real, imag = map(float.fromhex, parts)
    return complex(real, imag) if imag else real
